"""What annotation files hold: values, boxes, masks, judged one by one."""
