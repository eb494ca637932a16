//! Runs one of the agent's parsers, by the name it has in `berth_agent::parsers`.

/// Gives the bytes to the parser of that name.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, parse) = berth_agent::parsers::PARSERS
        .iter()
        .find(|(parser, _)| *parser == name)
        .expect("a fuzz target is named as its parser");
    parse(bytes);
}
