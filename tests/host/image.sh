#!/bin/sh
# Builds the disk image of emulated hosts from Debian packages, once: a later call with the same recipe finds it in
# the cache. Prints the folder with disk.img, versions, and for each kernel vmlinuz-KERNEL and initrd-KERNEL: `stable`
# (that of the suite) and `backports` (a newer one; left out if it cannot be had, and in suites without one, that of the
# suite). In bookworm, these are 6.1 without KSM advisor and 6.12 with it. BERTH_HOST_SUITE selects another suite, for other
# versions of the kernel, containerd and the CNI plugins. BERTH_HOST_NEWER_SUITE takes the second kernel, containerd, runc and
# the CNI plugins from a newer suite, because debootstrap cannot always install that suite itself. Needs root (debootstrap), 3 GB of disk and three minutes.
# usage: tests/host/image.sh [--find]    --find: fails if the image is not in the cache
set -eu

suite=${BERTH_HOST_SUITE:-bookworm}
newer=${BERTH_HOST_NEWER_SUITE:-}
packages=systemd,systemd-sysv,dbus,udev,kmod,iproute2,procps,curl,linux-image-cloud-amd64
# Other programs, with whose output the report of the agent is compared.
packages=$packages,util-linux,numactl,pciutils,lvm2,e2fsprogs,libvirt-clients
# Tenants' networks: the real CNI plugins, and programs that capture frames.
packages=$packages,containernetworking-plugins,nftables,iputils-ping,tcpdump
# DHCP clients of guests, beside those of busybox and systemd.
packages=$packages,isc-dhcp-client
# What a kubelet needs, and a program without libraries for its pods.
packages=$packages,containerd,runc,conntrack,iptables,busybox-static
recipe=$(cksum <"$0" | cut -d' ' -f1)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/berth
cache=$folder/host-$suite${newer:+-$newer}-$recipe

here=$(cd "$(dirname "$0")" && pwd)
begin=$(date +%s)
progress() {
    echo "image.sh: $1 ($(($(date +%s) - begin)) s)" >&2
}
found() {
    [ -f "$cache/disk.img" ] && echo "$cache"
}
found && exit
[ "${1:-}" != --find ] || exit 1
# What is mounted below the work folder goes away with this program, however it ends.
[ "${1:-}" = --unshared ] || exec unshare --mount "$0" --unshared

mkdir -p "$folder"
exec 9<"$folder"
flock --timeout 1800 9 || {
    echo "image.sh: another build has $folder locked for half an hour: end it and try again" >&2
    exit 1
}
found && exit # Another process built it meanwhile.
work=$cache.building
root=$work/root
# Under the lock a work folder is one that a killed build left.
rm -rf --one-file-system "$folder/host-$suite${newer:+-$newer}"-[0-9]*.building
mkdir "$work"
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
log=$work/build.log

mirror=$("$here/../mirror.sh" "$suite")
[ -z "$newer" ] || newer_mirror=$("$here/../mirror.sh" "$newer")
progress "building the image of emulated hosts once, some three minutes: installing Debian $suite"
# No test cuts the power during an installation, or reads the documentation of these packages. `path-exclude` is not on the
# hosts, so packages that tests install there have all their files.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d" "$root/etc/initramfs-tools/conf.d" "$root/usr/share/initramfs-tools/modules.d"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
printf 'path-exclude=/usr/share/%s/*\n' doc info lintian locale man >"$root/etc/dpkg/dpkg.cfg.d/image"
# These modules find the disk; the rest of the modules is on it. `dep` would query this machine, not the emulated one.
printf '%s\n' virtio_pci virtio_blk ext4 >"$root/usr/share/initramfs-tools/modules.d/berth"
printf '%s\n' MODULES=list COMPRESS=gzip COMPRESSLEVEL=1 >"$root/etc/initramfs-tools/conf.d/berth"
# The trigger of initramfs-tools creates the initramfs at the end; INITRD=No prevents that the kernel's package does so before.
INITRD=No timeout --foreground 1500 debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" \
    >"$log" 2>&1 || {
    echo "image.sh: debootstrap failed; the end of its log:" >&2
    tail -20 "$log" >&2
    exit 1
}
mount -t proc proc "$root/proc"
[ -n "$(ls "$root"/boot/initrd.img-* 2>>"$log")" ] || chroot "$root" update-initramfs -c -k all >>"$log" 2>&1

keep_kernel() { # its name
    (cd "$root/boot" && ls vmlinuz-*) | sed "s/^vmlinuz-/kernel-$1 /" >>"$work/versions"
    # An emulated CPU needs seconds to decompress the initramfs. `zcat -f` copies what is not compressed with gzip.
    mv "$root"/boot/vmlinuz-* "$work/vmlinuz-$1" && zcat -f "$root"/boot/initrd.img-* >"$work/initrd-$1" &&
        rm "$root"/boot/initrd.img-*
}
keep_kernel stable
progress "installing the kernel of ${newer:-$suite-backports} and NetworkManager"

# This machine's apt fetches, as its settings for proxies and dates may be needed; the image's dpkg installs.
fetch() {
    timeout --foreground 600 apt-get -qq -y -o APT::Sandbox::User=root -o Dir::Etc::SourceParts=- \
        -o Dir::Etc::SourceList="$work/sources.list" -o Dir::State::Lists="$work/lists" -o Acquire::Languages=none \
        -o Dir::State::Status="$root/var/lib/dpkg/status" -o Dir::Cache="$work/cache" "$@" >>"$log" 2>&1
}
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
keyring=$root/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"
newer_packages=linux-image-cloud-amd64
if [ -n "$newer" ]; then
    echo "deb [signed-by=$keyring] $newer_mirror $newer main" >>"$work/sources.list"
    newer_packages="$newer_packages containerd runc containernetworking-plugins"
else
    echo "deb [signed-by=$keyring] $mirror $suite-backports main" >>"$work/sources.list"
fi
# Fails if one of the lists cannot be had; the packages of the other can still be installed.
fetch update || true
# shellcheck disable=SC2015,SC2086 # either way what follows `||` is right; a list of words
fetch install --download-only --no-install-recommends -t "${newer:-$suite-backports}" $newer_packages &&
    mv "$work"/cache/archives/*.deb "$root/tmp/" &&
    # The second run is for packages whose pre-dependency (linux-base) is only configured by the first run.
    chroot "$root" sh -c 'dpkg -i /tmp/*.deb || dpkg -i /tmp/*.deb' >>"$log" 2>&1 && keep_kernel backports || {
    echo "image.sh: no kernel from backports, continuing without it; the end of the output of apt:" >&2
    tail -5 "$log" >&2
}
# The tests need both kernels of bookworm, and a newer suite was requested, so a failed download must not be hidden.
[ -e "$work/vmlinuz-backports" ] || [ -z "$newer" ] || exit 1
[ -e "$work/vmlinuz-backports" ] || [ "$suite" = bookworm ] || {
    sed -n 's/^kernel-stable /kernel-backports /p' "$work/versions" >"$work/versions.new"
    cat "$work/versions.new" >>"$work/versions"
    rm "$work/versions.new"
    ln -s vmlinuz-stable "$work/vmlinuz-backports"
    ln -s initrd-stable "$work/initrd-backports"
}
# What else manages links. Its packages' scripts want /proc, which debootstrap does not give them.
rm -f "$root"/tmp/*.deb
# shellcheck disable=SC2015
fetch install --download-only --no-install-recommends -t "$suite" network-manager &&
    mv "$work"/cache/archives/*.deb "$root/tmp/" && chroot "$root" sh -c 'dpkg -i /tmp/*.deb' >>"$log" 2>&1 || {
    echo "image.sh: no NetworkManager, continuing without it; the end of the output:" >&2
    tail -5 "$log" >&2
}
# Since trixie, this program is in a package whose dependency polkitd cannot be configured here. Its libraries are there.
[ -x "$root/usr/bin/virt-host-validate" ] || {
    package=libvirt-daemon-common
    (cd "$work" && fetch download -t "$suite" "$package") &&
        dpkg-deb --fsys-tarfile "$work/$package"_*.deb | tar -x -C "$root" ./usr/bin/virt-host-validate 2>>"$log" &&
        rm "$work/$package"_*.deb
} || {
    echo "image.sh: no virt-host-validate; the end of the log:" >&2
    tail -5 "$log" >&2
    exit 1
}

# Lines in are `NUMBER SECONDS SCRIPT`, lines out `NUMBER CODE OUTPUT`, script and output in base64. A command starts no
# process other than its bash: on an emulated host, rm, timeout and two base64 took longer than most commands.
cat >"$root/usr/local/sbin/berth-shell" <<'SHELL'
#!/usr/bin/perl
use strict;
use warnings;

my ($script, $output) = ('/run/berth-shell/script', '/run/berth-shell/output');

# MIME::Base64 is not in perl-base; uuencode has the same digits in another alphabet, and lines with their lengths.
sub decode {
    my $digits = $_[0] =~ tr{A-Za-z0-9+/}{}cdr =~ tr{A-Za-z0-9+/}{ -_}r;
    return join '', map { unpack 'u', chr(32 + length($_) * 3 / 4) . $_ } $digits =~ /.{1,60}/gs;
}

sub encode {
    my $digits = pack('u', $_[0]) =~ s/^.//gmr =~ tr{\n}{}dr =~ tr{` -_}{AA-Za-z0-9+/}r;
    my $padding = -length($_[0]) % 3;
    substr $digits, length($digits) - $padding, $padding, '=' x $padding if $padding;
    return $digits;
}

sub run { # seconds
    my $late = 0;
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
        setpgrp;
        open STDIN, '<', '/dev/null' and open STDOUT, '>', $output and open STDERR, '>&', \*STDOUT or exit 125;
        exec 'bash', $script or exit 127;
    }
    # Ends the command like `timeout --kill-after=5`. `waitpid` continues after the signal.
    local $SIG{ALRM} = sub { kill $late++ ? 'KILL' : 'TERM', -$pid; alarm 5 };
    alarm $_[0];
    waitpid $pid, 0;
    alarm 0;
    return $late > 1 ? 137 : 124 if $late;
    return $? & 127 ? 128 + ($? & 127) : $? >> 8;
}

sub contents {
    open my $file, '<:raw', $_[0] or return '';
    local $/;
    return <$file> // '';
}

mkdir '/run/berth-shell';
open my $port, '+<:raw', '/dev/virtio-ports/berth' or die "port: $!\n";
my $answer = "ready\n";
my $received = '';
while (1) {
    while (length $answer) {
        substr $answer, 0, (syswrite($port, $answer) // die "port: $!\n"), '';
    }
    while (index($received, "\n") < 0) {
        sysread $port, $received, 65536, length $received or exit;
    }
    $received =~ s/^(.*)\n// or next;
    my ($number, $seconds, $text) = split ' ', $1;
    # New files: what an earlier command left running still writes to the old ones.
    unlink $script, $output;
    open my $file, '>:raw', $script or die "$script: $!\n";
    print $file decode($text // '');
    close $file or die "$script: $!\n";
    my $code = run($seconds);
    $answer = "$number $code " . encode(contents($output)) . "\n";
}
SHELL
chmod 755 "$root/usr/local/sbin/berth-shell"
cat >"$root/etc/systemd/system/berth-shell.service" <<'UNIT'
[Unit]
Description=Commands for tests
After=multi-user.target dev-virtio\x2dports-berth.device
Wants=dev-virtio\x2dports-berth.device

[Service]
ExecStart=/usr/local/sbin/berth-shell

[Install]
WantedBy=multi-user.target
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../berth-shell.service "$root/etc/systemd/system/multi-user.target.wants/"
# The console is for messages, and nothing is to run because of the time of day.
# NetworkManager runs only where a test starts it.
# The lines from lvm2-monitor are for speed: each program at boot takes up to a second. Programs still load the modules of
# device mapper, loop and FUSE when they open their device nodes.
for unit in containerd.service NetworkManager.service NetworkManager-wait-online.service ModemManager.service \
    wpa_supplicant.service serial-getty@ttyS0.service e2scrub_reap.service e2scrub_all.timer apt-daily.timer \
    apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer systemd-tmpfiles-clean.timer \
    lvm2-monitor.service lvm2-lvmpolld.socket dm-event.socket blk-availability.service \
    systemd-repart.service systemd-pstore.service systemd-sysusers.service systemd-random-seed.service \
    systemd-update-utmp.service systemd-update-utmp-runlevel.service getty@tty1.service \
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount \
    modprobe@configfs.service modprobe@dm_mod.service modprobe@drm.service modprobe@efi_pstore.service \
    modprobe@fuse.service modprobe@loop.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
# systemd starts the generators at boot and at each `daemon-reload`, of which the installation of a package needs several.
# The image has nothing for them: an empty /etc/fstab, no encrypted volume, no init script without a unit.
mkdir -p "$root/etc/systemd/system-generators"
for generator in "$root"/usr/lib/systemd/system-generators/*; do
    ln -s /dev/null "$root/etc/systemd/system-generators/$(basename "$generator")"
done
# udev starts systemd-sysctl for each new link. Without a setting of links, the program has nothing to do.
cat "$root"/usr/lib/sysctl.d/*.conf "$root"/etc/sysctl.d/*.conf "$root/etc/sysctl.conf" 2>/dev/null |
    grep -qE '^[^#;]*net[./]' || sed -i '/systemd-sysctl --prefix/d' "$root/usr/lib/udev/rules.d/99-systemd.rules"
# Packages of the tests ask no questions.
rm -f "$root/etc/apt/apt.conf.d/70debconf" "$root/etc/dpkg/dpkg.cfg.d/image"
echo rack1-a >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 rack1-a\n' >"$root/etc/hosts"
# Each host gets an id of its own on the kernel command line; one in the image would be shared.
: >"$root/etc/machine-id"
ln -sf /etc/machine-id "$root/var/lib/dbus/machine-id"

chroot "$root" dpkg-query -W -f '${Package} ${Version}\n' containerd containernetworking-plugins runc systemd \
    >>"$work/versions"
progress "writing the disk image"
umount "$root/proc"
rm -rf "$root"/tmp/*.deb "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/etc/resolv.conf
mke2fs -q -t ext4 -L berth-host -d "$root" "$work/disk.img" 2G >>"$log" 2>&1
rm -rf --one-file-system "$root" "$work/cache" "$work/lists" "$work/sources.list"
mv "$work" "$cache"
progress "the image is built: $cache"
echo "$cache"
