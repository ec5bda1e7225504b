// A libnvidia-ml for tests: three GPUs at 0000:00:00.0 and so on, of which the first two have NVLinks to each other.
#include <stdio.h>
#include <string.h>

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlSystemGetDriverVersion(char* text, unsigned length) {
    snprintf(text, length, "580.65.06");
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
    unsigned at;
    if (sscanf(bus, "0000:%x:00.0", &at) != 1 || at > 2) return 6; // not found
    *device = (void*)(0x1000 + (size_t)at);
    return 0;
}

int nvmlDeviceGetP2PStatus(void* from, void* to, int which, int* status) {
    size_t sum = (size_t)from + (size_t)to - 0x2000;
    *status = which == 2 && sum == 1 ? 0 : 5;
    return 0;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* state) {
    if (link >= 18) return 2; // invalid argument
    *state = link < 12;
    return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(void* from, void* to, int* level) {
    *level = 30;
    return 0;
}
