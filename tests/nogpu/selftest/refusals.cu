// SPDX-License-Identifier: Apache-2.0
//
// Things that are not emulated must say so and fail: refusals NAME
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>
__global__ void nothing() {}
int main(int argc, char** argv) {
  if (argc < 2) {
    nothing<<<1, 1>>>();
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    return 0;
  }
  if (!strcmp(argv[1], "texture")) {
    cudaTextureObject_t t;
    cudaResourceDesc r = {};
    cudaTextureDesc d = {};
    printf("%s\n", cudaGetErrorName(cudaCreateTextureObject(&t, &r, &d, nullptr)));
  }
  if (!strcmp(argv[1], "cluster")) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a;
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = 2;
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
    c.gridDim = dim3(2);
    c.blockDim = dim3(32);
    c.attrs = &a;
    c.numAttrs = 1;
    printf("%s\n", cudaGetErrorName(cudaLaunchKernelEx(&c, nothing)));
  }
  if (!strcmp(argv[1], "status")) return 7;
  return 0;
}
