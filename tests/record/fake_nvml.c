/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU: the functions the Python
 * binding calls, with fixed values. Environment variables make it misbehave:
 *   FAKE_NVML_INIT         return code of nvmlInitWithFlags
 *   FAKE_NVML_COUNT        number of devices (default 1)
 *   FAKE_NVML_UNSUPPORTED  name of a function that answers "not supported"
 *   FAKE_NVML_MIG          board 0 is divided into so many instances
 *   FAKE_NVML_LOST_AFTER   device 0 is lost after this many power readings
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define GPU_IS_LOST 15

typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;

/* Eight boards, each with room for four instances; instance 0 is the board itself. */
typedef struct { int board, instance; } device_t;
#define BOARD(number) {number, 0}, {number, 1}, {number, 2}, {number, 3}, {number, 4}
static device_t devices[8][5] = {{BOARD(0)}, {BOARD(1)}, {BOARD(2)}, {BOARD(3)},
                                 {BOARD(4)}, {BOARD(5)}, {BOARD(6)}, {BOARD(7)}};
static int power_readings;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int state(void *device, const char *function) {
    const char *unsupported = getenv("FAKE_NVML_UNSUPPORTED");
    device_t *own = device;
    int divided = own->board == 0 && number("FAKE_NVML_MIG", 0);
    /* of a divided board, and of its instances, only memory and what all instances share is known */
    if (divided && strcmp(function, "nvmlDeviceGetUtilizationRates") == 0)
        return NOT_SUPPORTED;
    if (own->instance && strcmp(function, "nvmlDeviceGetMemoryInfo") != 0)
        return NOT_SUPPORTED;
    if (own->board == 0 && power_readings >= number("FAKE_NVML_LOST_AFTER", 1 << 30))
        return GPU_IS_LOST;
    if (unsupported && strcmp(unsupported, function) == 0)
        return NOT_SUPPORTED;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return number("FAKE_NVML_INIT", SUCCESS); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case 9: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned int length) {
    strncpy(text, "600.12", length);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = (unsigned int)number("FAKE_NVML_COUNT", 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    *device = devices[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned int length) {
    device_t *own = device;
    snprintf(text, length, "%s-0000000%d-000%d-4222-8333-444444444444", own->instance ? "MIG" : "GPU",
             own->board, own->instance);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char own[96];
    for (int board = 0; board < number("FAKE_NVML_COUNT", 1); board++)
        for (int instance = 0; instance <= (board ? 0 : number("FAKE_NVML_MIG", 0)); instance++) {
            nvmlDeviceGetUUID(&devices[board][instance], own, sizeof own);
            if (strcmp(own, uuid) == 0) {
                *device = &devices[board][instance];
                return SUCCESS;
            }
        }
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(void *device, unsigned int *current, unsigned int *pending) {
    *current = *pending = ((device_t *)device)->board == 0 && number("FAKE_NVML_MIG", 0) > 0;
    return ((device_t *)device)->board == 0 ? SUCCESS : NOT_SUPPORTED; /* older boards cannot be divided */
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned int *count) {
    (void)device;
    *count = 4;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned int index, void **instance) {
    *instance = &devices[((device_t *)device)->board][index + 1];
    return (int)index < number("FAKE_NVML_MIG", 0) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *instance, void **device) {
    *device = devices[((device_t *)instance)->board];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(void *device, unsigned int *id) {
    *id = 6 + (unsigned int)((device_t *)device)->instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(void *device, unsigned int *id) {
    (void)device;
    *id = 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    (void)device;
    *major = 8;
    *minor = 6;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned int *mhz) {
    *mhz = kind == 1 ? 2100 : 9501;
    return state(device, __func__);
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *milliwatts) {
    *milliwatts = 350000;
    return state(device, __func__);
}

int nvmlDeviceGetName(void *device, char *text, unsigned int length) {
    strncpy(text, ((device_t *)device)->board == 0 ? "Imaginary GPU A" : "Imaginary GPU B", length);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    rates->gpu = 87;
    rates->memory = 34;
    return state(device, __func__);
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    int instance = ((device_t *)device)->instance;
    memory->total = (instance ? 6ULL : 24ULL) << 30;
    memory->used = instance ? (unsigned long long)instance << 30 : 5ULL << 30;
    memory->free = memory->total - memory->used;
    return state(device, __func__);
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned int *mhz) {
    *mhz = kind == 1 ? 1755 : 9501; /* 1: multiprocessors, 2: memory */
    return state(device, __func__);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    int now = state(device, __func__);
    *milliwatts = 251500;
    if (((device_t *)device)->board == 0)
        power_readings++;
    return now;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *celsius) {
    (void)sensor;
    *celsius = 71;
    return state(device, __func__);
}

/* The older name only: the newer one is looked for first and is not in this library. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = 0x4 | 0x20;
    return state(device, __func__);
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    *millijoules = 1234500;
    return state(device, __func__);
}
