//! From errors to options. The libraries name no option: their errors say what happened and, as data, what helps. This is
//! the one place that turns that into what to type.

use vit::Error;
use vit_data::ImageError;
use vit_data::loader::LoaderError;
use vit_graph::{GraphError, Hint};
use vit_insight::InsightError;
use vit_models::ModelError;
use vit_train::{RecipeError, RunError, TrainError};

use crate::shell;

/// An error with its context, and the options that help where there are any.
pub fn describe(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    match error.chain().find_map(of_cause) {
        // A list of several lines ends before the hint.
        Some(hint) if text.contains('\n') => format!("{text}\n{hint}"),
        Some(hint) => format!("{text}; {hint}"),
        None => text,
    }
}

fn of_cause(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    None.or_else(|| error.downcast_ref().and_then(of_facade))
        .or_else(|| error.downcast_ref().and_then(of_training))
        .or_else(|| error.downcast_ref().and_then(of_run))
        .or_else(|| error.downcast_ref().and_then(of_recipe))
        .or_else(|| error.downcast_ref().and_then(of_model))
        .or_else(|| error.downcast_ref().and_then(of_insight))
        .or_else(|| error.downcast_ref().and_then(of_image))
        .or_else(|| error.downcast_ref().and_then(of_graph))
}

fn of_facade(error: &Error) -> Option<String> {
    match error {
        Error::Model(error) => of_model(error),
        Error::Graph(error) => of_graph(error),
        Error::Train(error) => of_training(error),
        Error::Insight(error) => of_insight(error),
        Error::Image(error) => of_image(error),
        Error::NoHead => Some("`vit embed` gives its features".into()),
        Error::NoClassToken => Some("use --pool mean or --pool features".into()),
        Error::NonFinite { .. } | Error::Overflow { .. } => Some("f32 is --precision f32".into()),
        _ => None,
    }
}

fn of_model(error: &ModelError) -> Option<String> {
    match error {
        ModelError::UnknownModel { .. } => {
            Some("`vit models` lists them all; forms like N/4@32 give any patch and image size".into())
        }
        ModelError::Unmatched(_) => {
            Some("--allow-unmatched initialises what is missing and drops what is left over".into())
        }
        ModelError::Graph(error) => of_graph(error),
        _ => None,
    }
}

fn of_image(error: &ImageError) -> Option<String> {
    match error {
        ImageError::File { error, .. } => of_image(error),
        ImageError::TooLarge { width, height, .. } => {
            Some(format!("--max-pixels {} raises the limit", width.saturating_mul(*height)))
        }
        _ => None,
    }
}

fn of_insight(error: &InsightError) -> Option<String> {
    match error {
        InsightError::Method { instead, .. } | InsightError::ClassIndependent { instead, .. } => {
            let options: Vec<String> = instead.iter().map(|method| format!("--method {method}")).collect();
            Some(options.join(" or "))
        }
        InsightError::Graph(error) => of_graph(error),
        _ => None,
    }
}

fn of_training(error: &TrainError) -> Option<String> {
    match error {
        TrainError::Model(error) => of_model(error),
        TrainError::Run(error) => of_run(error),
        TrainError::Recipe(error) => of_recipe(error),
        TrainError::Loader(LoaderError::TooManyUnreadable { found, seen, .. }) => Some(max_unreadable(*found, *seen)),
        TrainError::UnreadableValidation { found, of, .. } => Some(max_unreadable(*found, *of)),
        TrainError::ChangedData { .. } => Some(
            "put the data back, continue with `vit resume --accept-changed-data`, which keeps the split and trains on new \
             images, or begin anew with another --out"
                .into(),
        ),
        TrainError::NothingHeldOut { validation: Some(_), .. } => {
            Some("name that with --data, or measure the training images with --split all".into())
        }
        TrainError::NothingHeldOut { .. } => Some("--split all measures them all the same".into()),
        other => options(other.hints()),
    }
}

fn of_recipe(error: &RecipeError) -> Option<String> {
    match error {
        RecipeError::UnknownKey { suggestion: None, .. } => {
            Some("`vit recipes show small` prints all keys with their meaning".into())
        }
        _ => None,
    }
}

fn of_run(error: &RunError) -> Option<String> {
    match error {
        RunError::Exists { path } => {
            let run = shell::quoted(path.as_os_str());
            Some(format!("`vit resume {run}` continues it, --overwrite replaces it, another --out keeps it"))
        }
        _ => None,
    }
}

fn of_graph(error: &GraphError) -> Option<String> {
    options(error.hints())
}

fn options(hints: &[Hint]) -> Option<String> {
    let options: Vec<String> = hints.iter().filter_map(option).collect();
    (!options.is_empty()).then(|| options.join(", "))
}

/// The option that does what a hint says.
fn option(hint: &Hint) -> Option<String> {
    match hint {
        Hint::SmallerBatch => Some("--batch N".into()),
        Hint::BatchThatFits { fits, .. } => Some(format!("--batch {fits}")),
        Hint::MicroBatches => Some("--set accumulate=2".into()),
        Hint::RecomputeActivations => Some("--recompute".into()),
        Hint::SmallerModel => Some("--model, --image-size".into()),
        Hint::Device(device) => Some(format!("--device {device}")),
        Hint::Precision(precision) => Some(format!("--precision {precision}")),
        Hint::LowerLearningRate => Some("--set schedule.rate=RATE".into()),
        Hint::SkipNonFinite => Some("--skip-non-finite".into()),
        _ => None,
    }
}

fn max_unreadable(found: usize, of: usize) -> String {
    format!("allow them with --max-unreadable {}%", (100 * found).div_ceil(of.max(1)))
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
