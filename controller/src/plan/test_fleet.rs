//! Objects for tests: two hosts with eight CPUs each, of which the system has two, and VMs.

use crate::fleet::{Fleet, parse_items};

const HOST: &str = "
apiVersion: berth.dev/v1alpha1
kind: InfraNode
metadata: {name: NAME}
spec: {}
status:
  capabilities:
    cpu: {sockets: 1, cores: 4, threads: 8, threadsPerCore: 2}
    memory: {total: 64Gi, ksm: {running: false}}
    kvm: {state: Ready}
    kubelet:
      cpuManagerPolicy: static
      topologyManagerPolicy: none
      reservedSystemCPUs: 0,4
  zones:
  - {id: 0, cpus: 0-7, cores: 4, threads: ['0-3', '4-7'], memory: 64Gi, reservedCPUs: '0,4', pinnableCPUs: '1-3,5-7'}
---
apiVersion: v1
kind: Node
metadata:
  name: NAME
  labels: {kubernetes.io/hostname: NAME, kubevirt.io/schedulable: 'true', cpumanager: 'true', kubevirt.io/cpumanager: 'true', machine-type.node.kubevirt.io/q35: 'true', kubernetes.io/arch: amd64}
status:
  allocatable: {cpu: '7', memory: 60Gi, pods: '110', devices.kubevirt.io/kvm: '1000', devices.kubevirt.io/tun: '1000', devices.kubevirt.io/vhost-net: '1000'}
---
";

const VM: &str = "
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: NAME, namespace: cluster-a, labels: {md: web}}
spec:
  evictionStrategy: External
  domain: {cpu: {cores: CORES, dedicatedCpuPlacement: true}, memory: {guest: 1Gi}, devices: {}}
status:
  nodeName: HOST
  conditions: [{type: Ready, status: 'True'}, {type: LiveMigratable, status: 'MIGRATABLE', message: 'local disk'}]
---
";

/// Returns a VM with exclusive CPUs on a host.
pub(crate) fn vm(name: &str, host: &str, cores: u32, is_migratable: bool) -> String {
    let migratable = if is_migratable { "True" } else { "False" };
    VM.replace("NAME", name)
        .replace("HOST", host)
        .replace("CORES", &cores.to_string())
        .replace("MIGRATABLE", migratable)
}

/// Returns a fleet with the hosts `a` and `b`, and with these objects.
pub(crate) fn fleet(more: &str) -> Fleet {
    let text = format!("{}{}{more}", HOST.replace("NAME", "a"), HOST.replace("NAME", "b"));
    let mut problems = Vec::new();
    let items = parse_items("f", &text, &mut problems);
    let fleet = Fleet::from_items(items, problems);
    assert!(fleet.problems.is_empty(), "{:?}", fleet.problems);
    fleet
}
