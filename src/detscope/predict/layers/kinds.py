"""Kinds of operations: of layer graphs, and of what a microbench measures besides."""

# their treatment is known; any other is legal, is treated with care and named as assumed
CONVOLUTION, LINEAR, BATCH_NORM, RELU = "convolution", "linear", "batch_norm", "relu"
ADD, CONCATENATE, DROPOUT = "add", "concatenate", "dropout"
MAX_POOL, AVERAGE_POOL = "max_pool", "average_pool"
ACTIVATION = "activation"  # any element-wise function whose backward needs its input
KNOWN_KINDS = frozenset(
    (CONVOLUTION, LINEAR, BATCH_NORM, RELU, ADD, CONCATENATE, DROPOUT, MAX_POOL, AVERAGE_POOL, ACTIVATION)
)

# no layer graph holds them, but every training step has them
STEP = "step"  # what a step costs besides its layers: loss, optimizer's loop, clearing gradients
PARAMETER = "parameter"
CLAMP_IN_PLACE = "relu6"  # it keeps a copy of what it overwrites
ADAM = "parameter, adam"  # AdamW's update, as PARAMETER is that of SGD with momentum

# operators of detectors; several of torch's share a kind (see `calls.SHARED_KINDS`)
ROI_ALIGN = "torchvision.roi_align"
GROUP_NORM = "native_group_norm"
NEAREST, BILINEAR = "upsample_nearest2d", "upsample_bilinear2d"
ARITHMETIC, REDUCTION, INDEX, SORTING, LOSS = "arithmetic", "reduction", "index", "sorting", "loss"

# beside the layers: no tensor of the data's way, or no work but the call
VIEW, SMALL, NMS = "view", "small operator", "torchvision.nms"
BESIDE = frozenset({VIEW, SMALL, NMS})
