//! Runs one of the parsers in the `parsers` modules of `berth_agent`, `berth_controller` and `berth_dhcp_responder`,
//! selected by name.

/// Parses `bytes` with the parser that has this name.
pub fn run(name: &str, bytes: &[u8]) {
    let ours = berth_agent::parsers::PARSERS.iter().chain(berth_controller::parsers::PARSERS);
    let ours = ours.chain(berth_dhcp_responder::parsers::PARSERS);
    let (_, parse) = ours
        .copied()
        .find(|(parser, _)| *parser == name)
        .expect("a fuzz target should have the name of a parser");
    parse(bytes);
}
