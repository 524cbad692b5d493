// Marks functions that host and device code share.
#ifndef PLO_OPERATORS_HOST_DEVICE_H_
#define PLO_OPERATORS_HOST_DEVICE_H_

// `static` because the SIMD files are compiled with instruction sets of their
// own: a shared inline function could be linked from any of them.
#ifdef __CUDACC__
#define PLO_HOST_DEVICE static __host__ __device__ inline
#else
#define PLO_HOST_DEVICE [[maybe_unused]] static inline
#endif

#endif  // PLO_OPERATORS_HOST_DEVICE_H_
