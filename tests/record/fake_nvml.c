/* A stand-in for NVIDIA's libnvidia-ml.so.1, for machines without a GPU: the functions the Python
 * binding calls, with fixed values. Environment variables make it misbehave:
 *   FAKE_NVML_INIT         return code of nvmlInitWithFlags
 *   FAKE_NVML_COUNT        number of devices (default 1)
 *   FAKE_NVML_UNSUPPORTED  name of a function that answers "not supported"
 *   FAKE_NVML_LOST_AFTER   device 0 is lost after this many power readings
 */
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define GPU_IS_LOST 15

typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static int devices[8] = {0, 1, 2, 3, 4, 5, 6, 7};
static int power_readings;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static int state(void *device, const char *function) {
    const char *unsupported = getenv("FAKE_NVML_UNSUPPORTED");
    if (*(int *)device == 0 && power_readings >= number("FAKE_NVML_LOST_AFTER", 1 << 30))
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
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *text, unsigned int length) {
    strncpy(text, *(int *)device == 0 ? "Imaginary GPU A" : "Imaginary GPU B", length);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    rates->gpu = 87;
    rates->memory = 34;
    return state(device, __func__);
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = 24ULL << 30;
    memory->used = 5ULL << 30;
    memory->free = 19ULL << 30;
    return state(device, __func__);
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned int *mhz) {
    *mhz = kind == 1 ? 1755 : 9501; /* 1: multiprocessors, 2: memory */
    return state(device, __func__);
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
    int now = state(device, __func__);
    *milliwatts = 251500;
    if (*(int *)device == 0)
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
