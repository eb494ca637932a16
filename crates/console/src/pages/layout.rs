//! Frame of all pages.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::theme::Theme;
use crate::assets;

/// Options of htmx: no inline styles, no evaluation of code, no scripts in responses, and no copies of pages in the storage
/// of the browser.
const HTMX_OPTIONS: &str = r#"{"includeIndicatorStyles":false,"allowEval":false,"allowScriptTags":false,"selfRequestsOnly":true,"historyCacheSize":0,"refreshOnHistoryMiss":true,"scrollIntoViewOnBoost":false}"#;

/// A page as the response to a request.
pub(crate) struct Html(pub(crate) Markup);

impl IntoResponse for Html {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "text/html; charset=utf-8")], self.0.into_string()).into_response()
    }
}

/// Sections of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Fleet,
    Tenants,
    Machines,
    Networks,
}

impl Section {
    const ALL: [Self; 4] = [Self::Fleet, Self::Tenants, Self::Machines, Self::Networks];

    const fn path(self) -> &'static str {
        match self {
            Self::Fleet => "/",
            Self::Tenants => "/tenants",
            Self::Machines => "/vms",
            Self::Networks => "/networks",
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Fleet => "Fleet",
            Self::Tenants => "Tenants",
            Self::Machines => "VMs",
            Self::Networks => "Networks",
        }
    }
}

/// Frame of a page of a user.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) section: Section,
    pub(crate) user: &'a str,
    pub(crate) csrf: String,
    pub(crate) theme: Theme,
    /// Path and query of the page.
    pub(crate) path: &'a str,
    /// True if the page receives changes while it is open.
    pub(crate) is_live: bool,
}

/// Content of a page.
pub(crate) struct Content {
    /// Form that selects what the view shows; it stays when the view is refreshed.
    pub(crate) form: Option<Markup>,
    /// The part that is refreshed when objects change.
    pub(crate) view: Markup,
}

/// Returns a page of a user.
pub(crate) fn page(frame: &Frame<'_>, content: &Content) -> Markup {
    document(
        frame.title,
        frame.theme,
        Some(frame.is_live),
        &html! {
            a .skip href="#content" { "Skip to content" }
            header .top {
                a .brand href="/" { "Berth" }
                nav aria-label="Sections" {
                    ul {
                        @for section in Section::ALL {
                            li {
                                a href=(section.path()) aria-current=[(section == frame.section).then_some("page")] {
                                    (section.label())
                                }
                            }
                        }
                    }
                }
                @if frame.is_live { p #live .live role="status" { "Not live" } }
                button #stop type="button" aria-pressed="false" hidden { "Stop updates" }
                (theme_form(frame))
                form .user method="post" action="/sign-out" {
                    input type="hidden" name="csrf" value=(frame.csrf);
                    span .name title="User" { (frame.user) }
                    button type="submit" { "Sign out" }
                }
            }
            main #content tabindex="-1" {
                h1 { (frame.title) }
                @if let Some(form) = &content.form { (form) }
                // The script copies the count of the view, which is replaced and so not announced.
                p #announcement .announcement role="status" {}
                p #gone .warning role="status" hidden { "This object no longer exists, or you may no longer see it. The page shows its last state." }
                div #view hx-get=[frame.is_live.then_some(frame.path)] hx-trigger="refresh" hx-select="#view" hx-target="this"
                    hx-swap="outerHTML" hx-headers=r#"{"Berth-Refresh": "1"}"# {
                    (content.view)
                }
            }
        },
    )
}

fn theme_form(frame: &Frame<'_>) -> Markup {
    html! {
        form .theme method="post" action="/theme" aria-label="Theme" {
            input type="hidden" name="csrf" value=(frame.csrf);
            input type="hidden" name="from" value=(frame.path);
            @for theme in Theme::ALL {
                button type="submit" name="theme" value=(theme) aria-pressed=((theme == frame.theme).to_string()) {
                    (theme.label())
                }
            }
        }
    }
}

/// Returns a page without navigation, for example for the sign-in.
pub(crate) fn bare_page(title: &str, theme: Theme, content: &Markup) -> Markup {
    document(
        title,
        theme,
        None,
        &html! {
            main #content .bare { (content) }
        },
    )
}

/// Returns a document. `is_live` is `None` for pages without scripts, and true for pages that receive changes.
fn document(title: &str, theme: Theme, is_live: Option<bool>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" data-theme=(theme) {
            head {
                meta charset="utf-8";
                title { (title) " - Berth" }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=(HTMX_OPTIONS);
                link rel="icon" href=(assets::path("icon.svg"));
                link rel="stylesheet" href=(assets::path("console.css"));
                @if is_live.is_some() {
                    script src=(assets::path("htmx.js")) defer {}
                    script src=(assets::path("console.js")) defer {}
                }
            }
            body data-live=[is_live.filter(|is_live| *is_live)] { (body) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_texts_are_escaped() {
        let hostile = "\"><script>alert(1)</script><img src=x onerror='alert(1)'>";
        let frame = Frame {
            title: hostile,
            section: Section::Fleet,
            user: hostile,
            csrf: hostile.to_owned(),
            theme: Theme::Dark,
            path: hostile,
            is_live: true,
        };
        let content = Content { form: None, view: html! { p title=(hostile) { (hostile) } } };
        let text = page(&frame, &content).into_string();
        assert!(!text.contains("<script>") && !text.contains("<img"), "{text}");
        assert!(!text.contains("\"\"><"), "{text}");
        assert!(text.contains("data-theme=\"dark\"") && text.contains("&lt;script&gt;"), "{text}");
        assert!(text.contains("data-live") && text.contains("hx-get"), "{text}");
        let frame = Frame { is_live: false, ..frame };
        let text = page(&frame, &content).into_string();
        assert!(!text.contains("data-live") && !text.contains("hx-get"), "{text}");
    }

    #[test]
    fn pages_have_no_inline_scripts_and_styles() {
        let text = bare_page("x", Theme::Auto, &html! { p { "x" } }).into_string();
        for inline in ["style=", "<style", "onclick", "javascript:"] {
            assert!(!text.contains(inline), "{inline}: {text}");
        }
    }
}
