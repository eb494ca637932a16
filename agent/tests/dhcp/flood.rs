//! Tests that a guest that sends many requests gets a limited number of answers, and does not prevent the answers to
//! its neighbour.

use crate::namespace::run_script;

/// Script that runs after the prelude of [`crate::namespace`].
const SCRIPT: &str = r#"
# Sends requests for an address until SIGTERM, at most 2,000 per second, and prints their number.
flood() { # NAME MAC
    exec ip netns exec "$1" perl -MSocket -e 'socket(S, PF_INET, SOCK_DGRAM, 0) or die; setsockopt(S, SOL_SOCKET, SO_BROADCAST, 1) or die;
        bind(S, sockaddr_in(68, INADDR_ANY)) or die; my $mac = $ARGV[0]; $mac =~ tr/://d;
        my $request = pack("C4 N x20 H12 x202 H8 C4", 1, 1, 6, 0, 7, $mac, "63825363", 53, 1, 1, 255);
        my ($stop, $count, $end) = (0, 0, time + 300); $SIG{TERM} = sub { $stop = 1 };
        until ($stop || time > $end) {
            for (1 .. 20) { $count++ if send(S, $request, 0, sockaddr_in(67, inet_aton("10.1.0.255"))) }
            select(undef, undef, undef, 0.01);
        }
        print "$count\n"' "$2"
}
count() { value="$(metric "$1")"; echo "${value:-0}"; }
offers='berth_dhcp_answers_total{kind="dhcpv4_offer"}'
unanswered='berth_dhcp_ignored_total{reason="rate_limited"}'
is_unanswered() { [ "$(count "$unanswered")" -gt 0 ]; }
was_limited() { [ "$(count berth_dhcp_rate_limited_total)" -gt 0 ]; }

guest a1 02:00:00:00:00:a1 tn5001
guest a2 02:00:00:00:00:a2 tn5001
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 '
wait_for lease_is a2 '10.1.0.11/24 10.1.0.53 '
if is_unanswered; then exit 1; fi
# udhcpc has no filter of frames: without this option, the flood fills its socket, and udhcpc loses the answers.
bridge link set dev port-a2 bcast_flood off
ip -n a1 address add 10.1.0.10/24 dev eth0

before="$(count "$offers")"
begin="$(date +%s)"
flood a1 02:00:00:00:00:a1 >sent &
flood=$!
# Both limits apply: that of the responder, and that of the frames that the agent reads from the socket of a port.
wait_for is_unanswered
wait_for was_limited
sleep 3
# Each request of the neighbour is answered. A client repeats a lost request after a second.
for _ in 1 2 3 4 5; do
    lease_is a2 '10.1.0.11/24 10.1.0.53 '
done
kill -0 "$flood"
kill "$flood"
wait "$flood"
seconds="$(($(date +%s) - begin + 1))"
# An agent that reads the last frames still answers them.
sleep 2
# The guest gets 20 answers at once and five per second. The neighbour gets at most one offer for each request.
limit="$((20 + 5 * (seconds + 2) + 5 * 10))"
[ "$(($(count "$offers") - before))" -le "$limit" ]
[ "$(cat sent)" -gt "$((10 * limit))" ]

# After the flood, the guest gets its answer.
wait_for lease_is a1 '10.1.0.10/24 10.1.0.53 '
metric_is berth_dhcp_addresses_in_use 0
"#;

/// Networks of the HostLeases.
const NETWORKS: &str = r#"
  - name: cluster-a
    vni: 5001
    ipv4: {prefixLength: 24, gateway: 10.1.0.1, nameservers: [10.1.0.53]}
    leases:
    - {mac: "02:00:00:00:00:a1", machine: cluster-a/worker-a, ipv4: 10.1.0.10}
    - {mac: "02:00:00:00:00:a2", machine: cluster-a/worker-b, ipv4: 10.1.0.11}
"#;

#[test]
fn a_flood_of_requests_does_not_prevent_the_answers_to_a_neighbour() {
    let test = "a_flood_of_requests_does_not_prevent_the_answers_to_a_neighbour";
    run_script(test, &["bridge", "perl", "udhcpc"], NETWORKS, SCRIPT);
}
