//! What all pages of reports begin with, and the facts that they fold.

use std::fmt::{self, Write};

use super::escape::Escaped;
use super::host::Host;

/// The colours and tables of all reports.
pub(crate) const STYLE: [&str; 2] = [include_str!("report.css"), include_str!("heat.css")];

/// The head of a page and its title. The caller closes the body.
pub(crate) fn begin(text: &mut String, title: &str, style: &str, host: &Host) -> fmt::Result {
    writeln!(text, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(text, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(text, "<title>{title}, {}</title>", Escaped(&host.date))?;
    writeln!(text, "<style>\n{style}</style>\n</head>\n<body>\n<h1>{title}</h1>")?;
    writeln!(text, "<p class=\"lead\">{}</p>", Escaped(&host.sentence()))
}

/// The entries of a list: the machine, the versions, the command and the cores.
pub(crate) fn facts(
    text: &mut String,
    host: &Host,
    command: &str,
    [server_core, load_core]: [usize; 2],
) -> fmt::Result {
    for (name, fact) in host.facts() {
        writeln!(text, "<dt>{name}</dt><dd>{}</dd>", Escaped(&fact))?;
    }
    writeln!(text, "<dt>Command</dt><dd><code>{}</code></dd>", Escaped(command))?;
    writeln!(
        text,
        "<dt>Ran on</dt><dd>servers on core {server_core}, load on core {load_core}</dd>"
    )
}
