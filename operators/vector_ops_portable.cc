#include "operators/vector_ops_impl.h"

namespace plo {

const VectorOps& PortableVectorOps() { return kTable; }

const VectorOps& Vec() {
  static const VectorOps& ops =
      Avx2VectorOps() != nullptr ? *Avx2VectorOps() : PortableVectorOps();
  return ops;
}

}  // namespace plo
