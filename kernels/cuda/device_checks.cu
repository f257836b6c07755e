// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_checks.h"

#include "kernels/cuda/device_block.h"

namespace nanhunt::kernels::cuda {
namespace {

template <class Table>
const void* check_function() {
  return reinterpret_cast<const void*>(&run_kernel<ChecksumKernel<Table>, kChecksumThreads>);
}

template <class Table>
cudaError_t launch(const Table& table, std::uint32_t blocks, const ChecksumMemory& memory, cudaStream_t stream) {
  ChecksumKernel<Table> kernel{memory, table};
  void* arguments[] = {&kernel};
  return cudaLaunchKernel(check_function<Table>(), dim3(blocks), dim3(kChecksumThreads), arguments, 0, stream);
}

}  // namespace

cudaError_t load_checks() {
  cudaFuncAttributes loaded{};
  const cudaError_t error = cudaFuncGetAttributes(&loaded, check_function<ChecksumTable>());
  return error != cudaSuccess ? error : cudaFuncGetAttributes(&loaded, check_function<ChecksumWalk>());
}

cudaError_t launch_checks(std::span<const CheckedTensor> tensors, const ChecksumMemory& memory, cudaStream_t stream) {
  if (tensors.size() == 1 && tensors[0].view.dims > 0) {
    const CheckedTensor& tensor = tensors[0];
    return launch(ChecksumWalk{tensor.view, tensor.reference}, checksum_blocks(tensor.view.count * tensor.view.size),
                  memory, stream);
  }
  ChecksumTable table;
  const std::uint32_t blocks = fill_checks(tensors, table);
  return launch(table, blocks, memory, stream);
}

}  // namespace nanhunt::kernels::cuda
