//! Completion scripts and manual pages, generated from the texts of `--help`.

use clap::Command;
use clap_complete::Shell;

/// Returns the completion script of a program for a shell.
#[must_use]
pub fn completion_script(mut command: Command, shell: Shell) -> String {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, &name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    // In its Bash script, clap_complete 4.6 uses two different names for a command with a hyphen, and then completes
    // nothing after the subcommand (clap-rs/clap#6421).
    match name.split_once('-') {
        Some((first, second)) => {
            script.replace(&format!("{first}__subcmd__{second}"), &format!("{first}__{second}"))
        }
        None => script,
    }
}

/// Returns the reference in Markdown: the output of `--help`, command by command.
#[must_use]
pub fn markdown_reference(mut command: Command) -> String {
    command.build();
    let name = command.get_name().to_owned();
    let mut page = format!(
        "# {name}\n\nOutput of `{name} help` for every command. `make samples` generates this page.\n"
    );
    let commands = command.get_subcommands();
    let commands = commands.filter(|one| !one.is_hide_set() && one.get_name() != "help");
    let all = std::iter::once((name.clone(), &command))
        .chain(commands.map(|one| (format!("{name} {}", one.get_name()), one)));
    for (title, command) in all {
        let help = command.clone().render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        let text = lines.join("\n");
        page.push_str(&format!("\n## {title}\n\n```text\n{}\n```\n", text.trim_end()));
    }
    page
}

/// Returns the manual page in troff. Each entry of `extra_sections` (title and text) is appended as a section, with its
/// text verbatim.
///
/// # Errors
/// Returns an error if clap cannot render the page, which would be a bug.
pub fn manual_page(
    mut command: Command,
    extra_sections: &[(&str, &str)],
) -> std::io::Result<String> {
    let mut page = Vec::new();
    command.build();
    let man = clap_mangen::Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    for subcommand in
        command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        let mut section = Vec::new();
        let man = clap_mangen::Man::new(subcommand.clone());
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        let title = format!("COMMAND {}", subcommand.get_name().to_uppercase());
        let section = String::from_utf8_lossy(&section);
        let section = section.replace(".SH DESCRIPTION", &format!(".SH \"{title}\""));
        page.extend_from_slice(section.replace(".SH OPTIONS", ".SS Options").as_bytes());
    }
    // The text is verbatim, because troff would join the lines of the examples to a paragraph.
    for (title, text) in extra_sections {
        let text = text.replace('-', "\\-");
        page.extend_from_slice(format!(".SH \"{title}\"\n.nf\n{text}.fi\n").as_bytes());
    }
    Ok(String::from_utf8_lossy(&page).into_owned())
}
