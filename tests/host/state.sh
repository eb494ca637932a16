#!/bin/bash
# Prints all settings that Berth may change on a host, and related settings, one value per line. Two
# outputs of an unchanged host are the same.
set -u
# Starts no processes: on an emulated host, a process for each file takes most of the time.
show() {
    for file in "$@"; do
        [ -r "$file" ] && mapfile -t lines <"$file" && printf '%s: %s\n' "$file" "${lines[*]}"
    done
}

show /sys/devices/system/node/node*/hugepages/*/nr_hugepages
show /sys/kernel/mm/hugepages/*/{nr_hugepages,nr_overcommit_hugepages}
show /sys/kernel/mm/transparent_hugepage/{enabled,defrag,shmem_enabled}
show /sys/kernel/mm/ksm/{run,pages_to_scan,sleep_millisecs,merge_across_nodes,advisor_mode,max_page_sharing,use_zero_pages}
show /proc/irq/default_smp_affinity /proc/irq/*/smp_affinity_list
show /sys/devices/virtual/workqueue/cpumask /sys/devices/virtual/workqueue/*/cpumask
find /sys/fs/cgroup -maxdepth 2 \( -name 'cpuset.cpus' -o -name 'cpuset.cpus.partition' -o -name 'cpuset.mems' \) | sort |
    while read -r file; do show "$file"; done
for function in /sys/bus/pci/devices/*; do
    show "$function/driver_override"
    cd -P "$function/driver" 2>/dev/null && printf '%s/driver: %s\n' "$function" "${PWD##*/}"
done
cd / || exit
systemctl show init.scope system.slice user.slice -p Id -p AllowedCPUs -p AllowedMemoryNodes -p CPUWeight -p MemoryMax
# Omits counters and values that the kernel changes by itself.
sysctl -a 2>/dev/null | grep -vE \
    '^(kernel\.(random|ns_last_pid|pty\.nr)|fs\.(dentry|inode|file-nr|aio-nr|quota)|net\.netfilter|vm\.(stat|compact)|kernel\.sched_domain|net\.ipv[46]\.(neigh|route)|fs\.binfmt)'
find /etc -type f -not -path '/etc/berth/*' -exec cksum {} + 2>/dev/null | sort -k3
