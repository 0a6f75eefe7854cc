"""What detectors and their trainers do around the network: matching, losses, averages, images, NMS."""
