//! Resources that the kubelet's managers have allocated to a container.

use super::cpu_bits::CompactCpuBits;
use super::devices::DeviceGrant;
use super::hints::Affinity;
use super::memory::Block;
use super::request::ContainerRole;

/// Resources allocated to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) role: ContainerRole,
    pub(super) affinity: Affinity,
    pub(super) cpus: CompactCpuBits,
    pub(super) blocks: Vec<Block>,
    pub(super) devices: Vec<DeviceGrant>,
}

/// `blocks` is the memory of a container, which may reuse memory of the pod's init containers. Subtracts the reused
/// memory from the grants of these init containers, which are in `before` (`updateInitContainersMemoryBlocks`).
pub(super) fn subtract_reused_memory(before: &mut [Grant], blocks: &[Block]) {
    for block in blocks {
        let mut size = block.size;
        let inits = before.iter_mut().filter(|grant| grant.role == ContainerRole::Init);
        for init in inits.flat_map(|grant| &mut grant.blocks) {
            if init.kind == block.kind && init.zones == block.zones {
                let part = size.min(init.size);
                init.size -= part;
                size -= part;
            }
        }
    }
}
