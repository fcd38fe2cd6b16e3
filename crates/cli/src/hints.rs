//! From errors to options. The libraries name no option: their errors say what happened and, as data, what helps. This is
//! the one place that turns that into what to type.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::sync::OnceLock;

use clap::{ArgMatches, Command};
use vit::Error;
use vit_data::ImageError;
use vit_data::loader::LoaderError;
use vit_graph::{GraphError, Hint};
use vit_insight::InsightError;
use vit_models::ModelError;
use vit_search::SearchError;
use vit_serve::ServeError;
use vit_serve::engine::EngineError;
use vit_train::{RecipeError, RunError, TrainError};

use crate::shell;

/// The options of the command that runs, by their long names; hints about others are left out.
static OPTIONS: OnceLock<BTreeSet<String>> = OnceLock::new();

/// Sets the command that runs, from the parsed command line.
pub fn set_command(command: &Command, matches: &ArgMatches) {
    let (mut command, mut matches) = (command, matches);
    let mut options = BTreeSet::new();
    while let Some((name, inner)) = matches.subcommand() {
        let Some(subcommand) = command.find_subcommand(name) else { break };
        (command, matches) = (subcommand, inner);
        options.extend(command.get_arguments().filter_map(|argument| argument.get_long()).map(String::from));
    }
    let _ = OPTIONS.set(options);
}

/// What to type, as the end of an error's sentence.
struct Advice {
    /// The option that the text is about, if it is one of the command that runs.
    option: Option<&'static str>,
    text: String,
}

impl Advice {
    fn text(text: impl Into<String>) -> Option<Advice> {
        Some(Advice { option: None, text: text.into() })
    }

    fn option(option: &'static str, text: impl Into<String>) -> Option<Advice> {
        Some(Advice { option: Some(option), text: text.into() })
    }

    fn applies(&self) -> bool {
        match (self.option, OPTIONS.get()) {
            (Some(option), Some(options)) => options.contains(option),
            _ => true,
        }
    }
}

/// An error with its context, and what helps where that is known.
pub fn describe(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    match error.chain().find_map(of_cause).filter(Advice::applies) {
        // After a list of several lines, on a line of its own.
        Some(advice) if text.contains('\n') => format!("{text}\n{}", advice.text),
        Some(advice) => format!("{text}; {}", advice.text),
        None => text,
    }
}

fn of_cause(error: &(dyn std::error::Error + 'static)) -> Option<Advice> {
    None.or_else(|| error.downcast_ref().and_then(of_facade))
        .or_else(|| error.downcast_ref().and_then(of_training))
        .or_else(|| error.downcast_ref().and_then(of_run))
        .or_else(|| error.downcast_ref().and_then(of_recipe))
        .or_else(|| error.downcast_ref().and_then(of_model))
        .or_else(|| error.downcast_ref().and_then(of_insight))
        .or_else(|| error.downcast_ref().and_then(of_image))
        .or_else(|| error.downcast_ref().and_then(of_graph))
        .or_else(|| error.downcast_ref().and_then(of_serving))
        .or_else(|| error.downcast_ref().and_then(of_search))
}

fn of_facade(error: &Error) -> Option<Advice> {
    match error {
        Error::Model(error) => of_model(error),
        Error::Graph(error) => of_graph(error),
        Error::Train(error) => of_training(error),
        Error::Insight(error) => of_insight(error),
        Error::Image(error) => of_image(error),
        Error::NoHead => Advice::text("`vit embed` gives its features"),
        Error::NoTextTower => Advice::text("texts need an image-text model, such as CLIP or SigLIP"),
        Error::TextLength { .. } => Advice::option("truncate", "--truncate cuts it"),
        Error::NoClassToken => Advice::option("pool", "use --pool mean or --pool features"),
        _ => None,
    }
}

fn of_model(error: &ModelError) -> Option<Advice> {
    match error {
        ModelError::UnknownModel { .. } => {
            Advice::text("`vit models` lists them all; forms like N/4@32 give any patch and image size")
        }
        ModelError::Unmatched(_) => Advice::option(
            "allow-unmatched",
            "--allow-unmatched initialises what is missing and drops what is left over",
        ),
        ModelError::Graph(error) => of_graph(error),
        _ => None,
    }
}

fn of_image(error: &ImageError) -> Option<Advice> {
    match error {
        ImageError::File { error, .. } => of_image(error),
        ImageError::TooLarge { width, height, .. } => {
            let pixels = width.saturating_mul(*height);
            Advice::option("max-pixels", format!("--max-pixels {pixels} raises the limit"))
        }
        _ => None,
    }
}

fn of_insight(error: &InsightError) -> Option<Advice> {
    match error {
        InsightError::Method { instead, .. } | InsightError::ClassIndependent { instead, .. } => {
            let options: Vec<String> = instead.iter().map(|method| format!("--method {method}")).collect();
            Advice::option("method", options.join(" or "))
        }
        InsightError::Graph(error) => of_graph(error),
        _ => None,
    }
}

fn of_training(error: &TrainError) -> Option<Advice> {
    match error {
        TrainError::Model(error) => of_model(error),
        TrainError::Run(error) => of_run(error),
        TrainError::Recipe(error) => of_recipe(error),
        TrainError::Loader(LoaderError::TooManyUnreadable { found, seen, .. }) => max_unreadable(*found, *seen),
        TrainError::UnreadableValidation { found, of, .. } => max_unreadable(*found, *of),
        TrainError::ChangedData { .. } => Advice::text(
            "put the data back, continue with `vit resume --accept-changed-data`, which keeps the split and trains on new \
             images, or begin anew with another --out",
        ),
        TrainError::NothingHeldOut { validation: Some(_), .. } => {
            Advice::option("split", "name that with --data, or measure the training images with --split all")
        }
        TrainError::NothingHeldOut { .. } => Advice::option("split", "--split all measures them all the same"),
        other => options(other.hints()),
    }
}

fn of_recipe(error: &RecipeError) -> Option<Advice> {
    match error {
        RecipeError::UnknownKey { suggestion: None, .. } => {
            Advice::text("`vit recipes show small` prints all keys with their meaning")
        }
        _ => None,
    }
}

fn of_run(error: &RunError) -> Option<Advice> {
    match error {
        RunError::Exists { path } => {
            let run = shell::quoted(path.as_os_str());
            Advice::text(format!("`vit resume {run}` continues it, --overwrite replaces it, another --out keeps it"))
        }
        _ => None,
    }
}

fn of_graph(error: &GraphError) -> Option<Advice> {
    options(error.hints())
}

fn of_serving(error: &ServeError) -> Option<Advice> {
    match error {
        ServeError::Engine(EngineError::Model { error, .. }) => of_facade(error),
        ServeError::Bind { error, .. } => match error.kind() {
            io::ErrorKind::AddrInUse => {
                Advice::text("choose another with --bind HOST:PORT or --admin-bind; port 0 takes a free one")
            }
            io::ErrorKind::PermissionDenied => Advice::text("ports below 1024 need a privilege; try --bind HOST:8000"),
            _ => None,
        },
        ServeError::ApiKeyFile { .. } => Advice::text("--api-key-file names a file with one key per line"),
        ServeError::Tls { .. } => Advice::text("--tls-cert and --tls-key name files in PEM form"),
        _ => None,
    }
}

fn of_search(error: &SearchError) -> Option<Advice> {
    match error {
        SearchError::NotAnIndex { path, .. } => {
            let index = shell::quoted(path.as_os_str());
            Advice::text(format!("`vit search index FOLDER --out {index}` makes one"))
        }
        SearchError::OtherModel { indexed, .. } => {
            let model = shell::quoted(indexed.as_os_str());
            Advice::option("out", format!("give --model {model}, or another --out"))
                .filter(Advice::applies)
                .or(Advice::text("leave --model out, or make another index"))
        }
        SearchError::Occupied { .. } | SearchError::OtherFiles { .. } => Advice::text("choose another --out"),
        SearchError::OtherVectors { indexed, .. } => Advice::text(format!("--dtype {indexed}, or another --out")),
        SearchError::Locked { .. } => Advice::text("wait until it ends"),
        _ => None,
    }
}

/// The options that do what hints say, as far as the command has them.
fn options(hints: &[Hint]) -> Option<Advice> {
    let all: Vec<String> = hints.iter().filter_map(option).filter(Advice::applies).map(|advice| advice.text).collect();
    if all.is_empty() { None } else { Advice::text(all.join(", ")) }
}

fn option(hint: &Hint) -> Option<Advice> {
    match hint {
        Hint::SmallerBatch => batch("N"),
        Hint::BatchThatFits { fits, .. } => batch(fits),
        Hint::MicroBatches => Advice::option("set", "--set accumulate=2"),
        Hint::RecomputeActivations => Advice::option("recompute", "--recompute"),
        Hint::SmallerModel => Advice::option("image-size", "--model, --image-size"),
        Hint::Device(device) => Advice::option("device", format!("--device {device}")),
        Hint::Precision(precision) => Advice::option("precision", format!("--precision {precision}")),
        Hint::LowerLearningRate => Advice::option("set", "--set schedule.rate=RATE"),
        Hint::SkipNonFinite => Advice::option("skip-non-finite", "--skip-non-finite"),
        _ => None,
    }
}

/// The option for the images of a run, whose name depends on the command.
fn batch(images: impl Display) -> Option<Advice> {
    let serving = Advice { option: Some("max-batch"), text: format!("--max-batch {images}") };
    if OPTIONS.get().is_some() && serving.applies() {
        return Some(serving);
    }
    Advice::option("batch", format!("--batch {images}"))
}

fn max_unreadable(found: usize, of: usize) -> Option<Advice> {
    let percent = (100 * found).div_ceil(of.max(1));
    Advice::option("max-unreadable", format!("allow them with --max-unreadable {percent}%"))
}

/// The error of a model that cannot be built for the image size that was asked for: the reason alone, since operation and
/// scope would not help.
pub fn unsuitable_size(error: GraphError) -> anyhow::Error {
    match error {
        GraphError::Shape { reason, .. } => anyhow::anyhow!("{reason}; choose another --image-size"),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_printed_once_and_its_option_last() {
        let too_large =
            ImageError::TooLarge { format: vit_data::ImageFormat::Png, width: 50_000, height: 50_000, max_pixels: 100 };
        let error = Err::<(), _>(ImageError::File { path: "a.png".into(), error: Box::new(too_large) });
        let text = describe(&error.context("the first image").unwrap_err());
        assert_eq!(text.matches("50000 x 50000").count(), 1, "{text}");
        assert!(
            text.starts_with("the first image: a.png: ")
                && text.ends_with("; --max-pixels 2500000000 raises the limit"),
            "{text}"
        );
        let plain = Err::<(), _>(std::io::Error::other("disk on fire")).context("a.jpg").unwrap_err();
        assert_eq!(describe(&plain), "a.jpg: disk on fire");
    }

    #[test]
    fn hints_of_a_device_are_options() {
        let hints = vec![Hint::SmallerBatch, Hint::MicroBatches, Hint::RecomputeActivations];
        let error = TrainError::from(GraphError::Memory { device: "cuda", what: "61 GB are needed".into(), hints });
        let text = describe(&vit::Error::from(error).into());
        assert!(text.ends_with("; --batch N, --set accumulate=2, --recompute"), "{text}");
    }
}
