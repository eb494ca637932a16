#!/usr/bin/perl
# Sends and receives frames that only switches may send, and frames that any station may send. A mark identifies each frame.
#
#   frames.pl send LINK SENDER [TAGS...]   sends each frame once by this link; TAGS are VLAN ids, outermost first: 100,200
#   frames.pl listen LINK FILE             writes SENDER:NAME:TAGS of each received frame, until it is killed
#   frames.pl names                        prints the names; the first line has the frames that only switches may send
use strict;
use warnings;
use IO::Handle;
use Socket qw(SOCK_RAW);

use constant { AF_PACKET => 17, ETH_P_ALL => 3, SOL_PACKET => 263, PACKET_ADD_MEMBERSHIP => 1, PACKET_MR_PROMISC => 1 };

# Name, destination address, and the bytes after the source address: an EtherType, or a length and LLC.
my @reserved = (
    ['stp',      '0180c2000000', '0026424203000000000080000001020304050000000080000001020304058001000014000200' . '0f00'],
    ['pause-frame', '0180c2000001', '88080001ffff'],
    ['lacp',     '0180c2000002', '88090101'],
    ['eapol',    '0180c2000003', '888e0101'],
    ['provider', '0180c2000008', '0026424203000000'],
    ['lldp',     '0180c200000e', '88cc0207'],
    ['gmrp',     '0180c2000020', '0026424203000100'],
    ['mvrp',     '0180c2000021', '88f50001'],
    ['cfm',      '0180c2000030', '89020001'],
    ['trill',    '0180c2000041', '22f40001'],
    ['cdp',      '01000ccccccc', '0026aaaa0300000c2000'],
    ['dtp',      '01000ccccccc', '0026aaaa0300000c2004'],
    ['pvst',     '01000ccccccd', '0026aaaa0300000c010b0000000000'],
    ['uplink',   '01000ccdcdcd', '0026aaaa0300000c200a'],
    ['edp',      '00e02b000000', '0026aaaa0300e02b00bb'],
    ['fdp',      '01e052cccccc', '0026aaaa0300e0522000'],
    ['erps',     '0119a7000001', '89020001'],
    ['probe',    '036265727468', '88b50000'],
);
my @ordinary = (
    ['broadcast', 'ffffffffffff', '88b50000'],
    ['multicast', '01005e000012', '88b50000'],
    ['ipv6',      '333300000001', '88b50000'],
    ['isis',      '0180c2000014', '0026fefe0383'],
    ['unicast',   '02be27fefefe', '88b50000'],
);

sub file { open my $file, '<', $_[0] or die "$_[0]: $!\n"; local $/; my $text = <$file>; chomp $text; $text }

sub address { my $index = file("/sys/class/net/$_[0]/ifindex"); (pack('S n i S C C a8', AF_PACKET, ETH_P_ALL, $index, 0, 0, 6, ''), $index) }

sub open_socket { socket(my $socket, AF_PACKET, SOCK_RAW, unpack('S', pack('n', $_[0]))) or die "socket: $!\n"; $socket }

my ($command, $link, $what, @tags) = @ARGV;
if (($command // '') eq 'names') {
    print join(' ', map { $_->[0] } @$_), "\n" for \@reserved, \@ordinary;
} elsif ($command eq 'send') {
    my ($to) = address($link);
    my $socket = open_socket(0);
    my $source = file("/sys/class/net/$link/address") =~ tr/://dr;
    for my $tags ('', @tags) {
        my @ids = split /,/, $tags;
        my $inserted = join '', map { sprintf '8100%04x', $_ } @ids;
        for (@reserved, @ordinary) {
            my ($name, $destination, $rest) = @$_;
            my $mark = "berth-frame:$what:$name:" . ($tags || 'untagged') . ';';
            my $frame = pack('H*', "$destination$source$inserted$rest") . $mark;
            $frame .= "\0" x (60 - length $frame) if length $frame < 60;
            send($socket, $frame, 0, $to) or die "$link: $name: $!\n";
            # A full queue drops frames without an error.
            select undef, undef, undef, 0.002;
        }
    }
} elsif ($command eq 'listen') {
    my ($at, $index) = address($link);
    my $socket = open_socket(ETH_P_ALL);
    bind $socket, $at or die "$link: $!\n";
    setsockopt $socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, pack('i S S a8', $index, PACKET_MR_PROMISC, 6, '') or die "$link: $!\n";
    open my $file, '>', $what or die "$what: $!\n";
    $file->autoflush(1);
    print $file "listening\n";
    my %heard;
    while (defined recv $socket, my $frame, 65535, 0) {
        while ($frame =~ /berth-frame:([^;]+);/g) { print $file "$1\n" unless $heard{$1}++ }
    }
} else {
    die "usage: frames.pl send|listen|names\n";
}
