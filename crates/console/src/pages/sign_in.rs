//! Page for the sign-in.

use maud::{Markup, html};

use super::layout::bare_page;
use super::theme::Theme;

/// Content of the page for the sign-in.
pub(crate) struct SignInPage<'a> {
    pub(crate) theme: Theme,
    pub(crate) csrf: &'a str,
    /// Path of the page that the user wanted to open.
    pub(crate) from: &'a str,
    /// Reason why the last credential was refused.
    pub(crate) error: Option<&'a str>,
}

pub(crate) fn sign_in_page(page: &SignInPage<'_>) -> Markup {
    bare_page(
        "Sign in",
        page.theme,
        &html! {
            h1 { "Berth" }
            @if let Some(error) = page.error {
                p .failure role="alert" { (error) }
            }
            p { "You see what the API server permits you to read. The console keeps your credential in memory until you sign out." }
            form .sign-in method="post" action="/sign-in" autocomplete="off" {
                input type="hidden" name="csrf" value=(page.csrf);
                input type="hidden" name="from" value=(page.from);
                h2 { "Token" }
                label for="token" { "Bearer token of a user or a ServiceAccount" }
                input #token type="password" name="token" autocomplete="off" spellcheck="false";
                button type="submit" { "Sign in" }
                h2 { "Client certificate" }
                label for="certificate" { "Certificate (PEM)" }
                textarea #certificate name="certificate" rows="4" spellcheck="false" autocomplete="off" {}
                label for="key" { "Private key (PEM)" }
                textarea #key name="key" rows="4" spellcheck="false" autocomplete="off" {}
                button type="submit" { "Sign in with the certificate" }
            }
            p { "Already signed in, and here through a link from another site? " a href=(page.from) { "Continue" } }
        },
    )
}

/// Page of a console that is opened with a link.
pub(crate) fn link_page(theme: Theme) -> Markup {
    bare_page(
        "Sign in",
        theme,
        &html! {
            h1 { "Berth" }
            p {
                "Open this console with the link that " code { "berth-controller console" } " printed when it started. A link "
                "works once, and for ten minutes. For a new link, send SIGUSR1 to the console."
            }
        },
    )
}
