//! Parsing, changing and printing recipes: their keys, the meaning of each, and the values that are allowed.

use std::fmt::Write;

use serde::Deserialize;
use toml::{Table, Value};

use super::{MaskTarget, MethodName, NAMED, OptimiserSettings, PretrainingTask, Recipe, Span, Teaching};

/// Every key with its meaning, except those of [`OptimiserSettings`].
const KEYS: [(&str, &str); 67] = [
    ("base", "the recipe that missing keys come from"),
    ("about", "its purpose"),
    ("length", "how long to train: \"90 epochs\" or \"20000 steps\""),
    ("batch", "images in a step"),
    ("accumulate", "micro-batches in a part of a batch, whose gradients are accumulated"),
    (
        "parts",
        "parts of a batch, added in a fixed order, so that up to so many processes give the same bits; 0: 1, or 8 for \
         several processes",
    ),
    ("batch_norm", "statistics of batch norms: part, of each part by itself, or sync, of all parts together"),
    ("seed", "the seed of all random choices"),
    ("evaluate_every", "how often to evaluate"),
    ("patience", "stop after this many evaluations in a row without a new best; 0: never"),
    (
        "model.start",
        "initial attention and position embeddings of a transformer: random, or mimetic (as in trained models)",
    ),
    (
        "model.options",
        "changes of the named model: [\"depth=4\", \"pos_embed=none\"], by timm's names; also positions=learned_2d|sin_cos|relative",
    ),
    ("model.drop_path", "stochastic depth of the last block, linearly less for earlier ones"),
    ("model.dropout", "dropout after position embeddings and linear layers"),
    ("model.attention_dropout", "dropout of attention weights"),
    ("model.patch_drop", "share of patches that are left out, others in every sample and step"),
    (
        "model.freeze",
        "parameters that are not trained: [\"backbone\"], [\"first 6 blocks\"], [\"blocks.*\", \"!*.norm1.*\"]",
    ),
    ("data.normalise", "mean and deviation of colours, from scratch: those of the training images, or the model's"),
    ("data.crop", "random-resized, padded or centre"),
    ("data.crop_scale", "random-resized: smallest and largest share of the image's area"),
    ("data.crop_ratio", "random-resized: smallest and largest width / height"),
    ("data.crop_padding", "padded: pixels on each side"),
    ("data.flip", "probability of a horizontal flip"),
    (
        "data.colour_jitter",
        "strength of random brightness, contrast and saturation, or a list of these three and that of the hue",
    ),
    ("data.colour_jitter_probability", "probability of the colour jitter"),
    ("data.grey", "probability of grey"),
    ("data.auto_augment", "none, or a policy as timm writes it: rand-m9-mstd0.5-inc1"),
    ("data.three_augment", "one of grey, solarize and blur (DeiT III)"),
    ("data.erasing", "probability of erasing a rectangle"),
    ("data.mixup", "mixup's alpha; 0: none"),
    ("data.cutmix", "cutmix's alpha; 0: none"),
    ("data.mix_probability", "probability of mixing a batch at all"),
    ("data.mix_switch", "probability of cutmix if both are on"),
    ("data.mix_until", "when mixing ends: \"290 epochs\", \"90%\""),
    ("data.label_smoothing", "share of each label that is spread over all classes"),
    ("data.repeated", "repeated augmentation: how often each image appears in a batch"),
    ("objective.loss", "softmax, or sigmoid for several labels per image"),
    ("objective.distillation", "none, soft or hard"),
    ("objective.teacher", "the teacher's checkpoint"),
    ("objective.alpha", "the teacher's share of the loss"),
    ("objective.temperature", "soft: the temperature of logits"),
    ("schedule.rate", "the highest learning rate"),
    ("schedule.rate_batch", "the batch that the rate is meant for, scaled linearly to others; 0: any"),
    ("schedule.warmup", "linear warm-up from zero: \"5 epochs\", \"500 steps\", \"3%\""),
    ("schedule.decay", "constant, cosine, linear or reciprocal-sqrt"),
    ("schedule.end", "cosine, linear: the last rate"),
    ("schedule.timescale", "reciprocal-sqrt: time in which the rate falls by the square root of two"),
    ("schedule.cooldown", "linear cool-down to zero at the end"),
    ("average.decay", "decay of the weights' moving average (EMA); 0: none"),
    ("average.end", "the last decay, approached along a cosine; 0: constant"),
    ("average.warmup", "let the average's decay rise from zero"),
    ("pretraining.task", "pre-training without labels: none, masked-patches, mae or dino"),
    ("pretraining.mask", "masked-patches, mae: the share of patches that are masked"),
    (
        "pretraining.target",
        "what is predicted of a masked patch: mean-colour, downsized or pixels; of mae: pixels or normalised-pixels",
    ),
    ("pretraining.decoder_width", "mae: width of the decoder; 0: 512, at most about two thirds of the encoder's"),
    ("pretraining.decoder_depth", "mae: blocks of the decoder; 0: 8, at most two thirds of the encoder's"),
    ("pretraining.prototypes", "dino: outputs of the head"),
    ("pretraining.local_crops", "dino: local crops of each image; it also has two global crops"),
    ("pretraining.local_size", "dino: pixels of a local crop's side; 0: about 3/7 of the image's"),
    ("pretraining.local_scale", "dino: smallest and largest share of the image's area in a local crop"),
    ("pretraining.blur", "dino: probability of a blur in the first and second global crop and in local crops"),
    ("pretraining.solarize", "dino: probability of solarizing these"),
    ("pretraining.teacher_temperature", "dino: temperature of the teacher's outputs"),
    ("pretraining.first_teacher_temperature", "dino: the same at the beginning"),
    ("pretraining.teacher_warmup", "dino: time in which the temperature rises linearly from the first one"),
    ("pretraining.student_temperature", "dino: temperature of the student's outputs"),
    ("pretraining.freeze_last_layer", "dino: time at the beginning in which prototypes stay as they are"),
];

fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.into_iter().chain(OptimiserSettings::KEYS)
}

/// Names of keys in PyTorch and timm.
const FOREIGN_NAMES: [(&str, &str); 11] = [
    ("lr", "schedule.rate"),
    ("learning_rate", "schedule.rate"),
    ("wd", "optimiser.weight_decay"),
    ("opt", "optimiser.method"),
    ("epochs", "length"),
    ("steps", "length"),
    ("batch_size", "batch"),
    ("ema", "average.decay"),
    ("clip_grad", "optimiser.clip"),
    ("smoothing", "data.label_smoothing"),
    ("aa", "data.auto_augment"),
];

/// An error in a recipe.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// An unknown name of a recipe.
    #[error("there is no recipe named `{name}`; there are {known}", known = Recipe::names().collect::<Vec<_>>().join(", "))]
    UnknownRecipe {
        /// The name asked for.
        name: String,
    },
    /// An unknown key.
    #[error("there is no recipe key `{key}`{}", suggestion.as_ref().map(|key| format!("; did you mean `{key}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest known key.
        suggestion: Option<String>,
    },
    /// An invalid value.
    #[error("`{key}` {what}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong with it.
        what: String,
    },
    /// Invalid TOML.
    #[error("line {line} is not valid TOML: {what}")]
    Syntax {
        /// Where.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// A setting that is not `KEY=VALUE`.
    #[error("`{0}` should be KEY=VALUE, like schedule.rate=1e-3")]
    Setting(String),
}

impl RecipeError {
    pub(super) fn unknown_recipe(name: &str) -> Self {
        RecipeError::UnknownRecipe { name: name.into() }
    }

    fn unknown_key(key: &str) -> Self {
        if let Some((_, meant)) = FOREIGN_NAMES.iter().find(|(name, _)| *name == key) {
            return RecipeError::UnknownKey { key: key.into(), suggestion: Some(meant.to_string()) };
        }
        fn leaf(key: &str) -> &str {
            key.rsplit('.').next().unwrap_or_default()
        }
        // A known name in another section, or a part of one, is nearer than any misspelling.
        let distance = |known: &str| match (leaf(known), leaf(key)) {
            _ if key.starts_with(&format!("{known}.")) => 0,
            (known, key) if known == key => 1,
            (short, long) if short.len() > 2 && long.starts_with(short) => 2,
            _ if known.starts_with(&format!("{key}.")) => 2,
            (a, b) => (1 + strsim::osa_distance(known, key)).min(2 + strsim::osa_distance(a, b)),
        };
        let nearest = keys().map(|(known, _)| (distance(known), known)).min_by_key(|(distance, _)| *distance);
        let near = |(distance, known): &(usize, &str)| *distance <= leaf(known).len().max(4) / 2;
        let suggestion = nearest.filter(near).map(|(_, known)| known.to_string());
        RecipeError::UnknownKey { key: key.into(), suggestion }
    }

    fn syntax(text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
        RecipeError::Syntax { line, what: error.message().replace('\n', ", ") }
    }
}

impl Recipe {
    /// Parses a recipe. Missing keys come from the recipe that it names as `base`, or from `small`.
    pub fn parse(text: &str) -> Result<Recipe, RecipeError> {
        let given: Table = toml::from_str(text).map_err(|e| RecipeError::syntax(text, &e))?;
        let base = match given.get("base") {
            Some(Value::String(name)) => Recipe::named(name)?,
            Some(_) => return Err(RecipeError::Value { key: "base".into(), what: "should be a recipe's name".into() }),
            None => Recipe::named(NAMED[0].0)?,
        };
        let recipe = base.overlaid(given)?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Parses a named recipe, which has all keys.
    pub(super) fn complete(text: &str) -> Result<Recipe, RecipeError> {
        toml::from_str(text).map_err(|e| RecipeError::syntax(text, &e))
    }

    /// Changes one setting: `schedule.rate=1e-3`.
    pub fn set(&mut self, setting: &str) -> Result<(), RecipeError> {
        self.set_all([setting])
    }

    /// Changes several settings, which are checked together.
    pub fn set_all<'a>(&mut self, settings: impl IntoIterator<Item = &'a str>) -> Result<(), RecipeError> {
        let mut changed = self.clone();
        for setting in settings {
            changed = changed.with(setting)?;
        }
        changed.check()?;
        *self = changed;
        Ok(())
    }

    fn with(&self, setting: &str) -> Result<Recipe, RecipeError> {
        let (key, text) = setting.split_once('=').ok_or_else(|| RecipeError::Setting(setting.into()))?;
        let (key, text) = (key.trim(), text.trim());
        let value = value_of(text);
        let mut path = key.rsplit('.');
        let leaf = path.next().unwrap_or_default().to_string();
        let given = path.fold(Table::from_iter([(leaf, value)]), |inner, section| {
            Table::from_iter([(section.to_string(), Value::Table(inner))])
        });
        self.overlaid(given)
    }

    fn overlaid(&self, given: Table) -> Result<Recipe, RecipeError> {
        let whole =
            |error: &dyn std::fmt::Display| RecipeError::Value { key: "recipe".into(), what: error.to_string() };
        let mut table = Table::try_from(self).map_err(|e| whole(&e))?;
        // One key at a time, so that an error names it.
        for (key, value) in leaves("", given) {
            let mut changed = table.clone();
            place(&mut changed, &key, value)?;
            if let Err(error) = Recipe::deserialize(changed.clone()) {
                let what = error.message().lines().next().unwrap_or_default();
                let what =
                    what.replace("usize", "a whole number").replace("u64", "a whole number").replace("f64", "a number");
                return Err(RecipeError::Value { key, what: format!("has a value of the wrong kind: {what}") });
            }
            table = changed;
        }
        Recipe::deserialize(table).map_err(|e| whole(&e.message()))
    }

    /// Checks that all values are valid.
    fn check(&self) -> Result<(), RecipeError> {
        let (m, d, o, s) = (&self.model, &self.data, &self.optimiser, &self.schedule);
        let wrong =
            |key: &str, what: &str| Err(RecipeError::Value { key: key.into(), what: format!("should be {what}") });
        for (key, value) in [
            ("model.drop_path", m.drop_path),
            ("model.dropout", m.dropout),
            ("model.attention_dropout", m.attention_dropout),
            ("model.patch_drop", m.patch_drop),
            ("data.label_smoothing", d.label_smoothing),
            ("optimiser.betas", o.betas[0]),
            ("optimiser.betas", o.betas[1]),
            ("optimiser.momentum", o.momentum),
            ("average.decay", self.average.decay),
        ] {
            if !(0.0..1.0).contains(&value) {
                return wrong(key, "at least 0 and below 1");
            }
        }
        for (key, value) in [
            ("data.flip", d.flip),
            ("data.colour_jitter_probability", d.colour_jitter_probability),
            ("data.grey", d.grey),
            ("average.end", self.average.end),
            ("data.erasing", d.erasing),
            ("data.mix_probability", d.mix_probability),
            ("data.mix_switch", d.mix_switch),
            ("objective.alpha", self.objective.alpha),
            ("optimiser.layer_decay", o.layer_decay),
            ("data.crop_scale", d.crop_scale[0]),
            ("data.crop_scale", d.crop_scale[1]),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return wrong(key, "from 0 to 1");
            }
        }
        for (key, value) in [
            ("data.mixup", d.mixup),
            ("data.cutmix", d.cutmix),
            ("optimiser.weight_decay", o.weight_decay),
            ("optimiser.weight_decay_end", o.weight_decay_end),
            ("optimiser.clip", o.clip),
            ("optimiser.epsilon", o.epsilon),
            ("schedule.rate", s.rate),
            ("schedule.end", s.end),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return wrong(key, "a number that is not negative");
            }
        }
        let jitter = d.colour_jitter.ranges();
        let [brightness, contrast, saturation, hue] =
            [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue];
        if ![brightness, contrast, saturation].iter().all(|range| range.is_finite() && *range >= 0.0) {
            return wrong("data.colour_jitter", "a number that is not negative");
        }
        if !(0.0..=0.5).contains(&hue) {
            return wrong("data.colour_jitter", "four numbers, of which the last, of the hue, is from 0 to 0.5");
        }
        if o.weight_decay_end > 0.0 && !matches!(o.method, MethodName::AdamW | MethodName::Lion) {
            return wrong("optimiser.weight_decay_end", "0 unless optimiser.method is adamw or lion");
        }
        for (key, value) in [("batch", self.batch), ("accumulate", self.accumulate), ("data.repeated", d.repeated)] {
            if value == 0 {
                return wrong(key, "at least 1");
            }
        }
        for (key, [low, high]) in [("data.crop_scale", d.crop_scale), ("data.crop_ratio", d.crop_ratio)] {
            if !(low > 0.0 && low <= high && high.is_finite()) {
                return wrong(key, "two numbers above 0, the smaller first");
            }
        }
        if self.parts > 0 && !self.parts.is_power_of_two() {
            return wrong("parts", "a power of two");
        }
        if !self.batch.is_multiple_of(self.accumulate) {
            return wrong("accumulate", &format!("a divisor of the batch, {}", self.batch));
        }
        if !self.batch.is_multiple_of(self.accumulate * self.parts.max(1)) {
            return wrong("parts", &format!("a divisor of the micro-batch, {}", self.batch / self.accumulate));
        }
        if !(self.objective.temperature.is_finite() && self.objective.temperature > 0.0) {
            return wrong("objective.temperature", "above 0");
        }
        if o.nesterov && o.momentum == 0.0 {
            return wrong("optimiser.momentum", "above 0 for nesterov");
        }
        if self.objective.distillation != Teaching::None && self.objective.teacher.is_empty() {
            return wrong("objective.teacher", "the teacher's checkpoint, since objective.distillation is not none");
        }
        self.check_pretraining()?;
        match self.length {
            Span::Share(_) => wrong("length", "a number of epochs or steps"),
            Span::Steps(0) | Span::Epochs(0.0) => wrong("length", "above 0"),
            _ => Ok(()),
        }
    }

    /// Checks the settings of pre-training without labels.
    fn check_pretraining(&self) -> Result<(), RecipeError> {
        let p = &self.pretraining;
        let wrong =
            |key: &str, what: &str| Err(RecipeError::Value { key: key.into(), what: format!("should be {what}") });
        if !(p.mask > 0.0 && p.mask < 1.0) {
            return wrong("pretraining.mask", "above 0 and below 1");
        }
        let classes = matches!(p.target, MaskTarget::MeanColour | MaskTarget::Downsized);
        match p.task {
            PretrainingTask::None => return Ok(()),
            PretrainingTask::Mae if classes => {
                return wrong("pretraining.target", "pixels or normalised-pixels for a masked autoencoder");
            }
            PretrainingTask::MaskedPatches if p.target == MaskTarget::NormalisedPixels => {
                return wrong("pretraining.target", "mean-colour, downsized or pixels for masked patches");
            }
            _ => {}
        }
        for (key, value) in [("data.mixup", self.data.mixup), ("data.cutmix", self.data.cutmix)] {
            if value > 0.0 {
                return wrong(key, "0 in pre-training without labels");
            }
        }
        if p.task == PretrainingTask::Dino && self.average.decay == 0.0 {
            return wrong("average.decay", "above 0, since the teacher of self-distillation is the moving average");
        }
        if self.objective.distillation != Teaching::None {
            return wrong("objective.distillation", "none in pre-training without labels");
        }
        if p.prototypes == 0 {
            return wrong("pretraining.prototypes", "at least 1");
        }
        for (key, value) in [
            ("pretraining.teacher_temperature", p.teacher_temperature),
            ("pretraining.first_teacher_temperature", p.first_teacher_temperature),
            ("pretraining.student_temperature", p.student_temperature),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return wrong(key, "above 0");
            }
        }
        for (key, values) in [("pretraining.blur", p.blur), ("pretraining.solarize", p.solarize)] {
            if !values.iter().all(|probability| (0.0..=1.0).contains(probability)) {
                return wrong(key, "three probabilities from 0 to 1: of both global crops and of local ones");
            }
        }
        let [low, high] = p.local_scale;
        if !(low > 0.0 && low <= high && high <= 1.0) {
            return wrong("pretraining.local_scale", "two numbers above 0 and up to 1, the smaller first");
        }
        Ok(())
    }

    /// The whole recipe as TOML, with a comment on every key.
    pub fn to_toml(&self) -> String {
        let plain = toml::to_string(self).unwrap_or_default();
        let (mut section, mut text) = (String::new(), String::new());
        for line in plain.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = format!("{name}.");
            }
            let key = line.split_once(" = ").map(|(key, _)| format!("{section}{key}"));
            let comment = key.and_then(|key| keys().find(|(known, _)| *known == key)).map(|(_, comment)| comment);
            let line = readable(line);
            // Writing to a String cannot fail.
            let _ = match comment {
                Some(comment) => writeln!(text, "{line:<40} # {comment}"),
                None => writeln!(text, "{line}"),
            };
        }
        text
    }
}

/// The keys of a table with their values, nested ones as `section.key`.
fn leaves(prefix: &str, table: Table) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            Value::Table(inner) => found.extend(leaves(&format!("{key}."), inner)),
            value => found.push((key, value)),
        }
    }
    found
}

/// Sets a known key.
fn place(table: &mut Table, key: &str, value: Value) -> Result<(), RecipeError> {
    let (section, leaf) = key.split_once('.').map_or((None, key), |(section, leaf)| (Some(section), leaf));
    let table = match section {
        None => table,
        Some(section) => match table.get_mut(section) {
            Some(Value::Table(inner)) => inner,
            _ => return Err(RecipeError::unknown_key(key)),
        },
    };
    let value = match (table.get(leaf), value) {
        (None | Some(Value::Table(_)), _) => return Err(RecipeError::unknown_key(key)),
        // `model.freeze=backbone` sets a list of one element.
        (Some(Value::Array(_)), Value::String(one)) => Value::Array(vec![Value::String(one)]),
        (_, value) => value,
    };
    table.insert(leaf.into(), value);
    Ok(())
}

/// The name and the value of a model's option, `depth=4`.
pub(super) fn option(text: &str) -> Result<(String, serde_json::Value), RecipeError> {
    let (name, value) = text.split_once('=').ok_or_else(|| RecipeError::Value {
        key: "model.options".into(),
        what: format!("has `{text}`, which should be NAME=VALUE, like depth=4"),
    })?;
    let value = serde_json::to_value(value_of(value.trim())).unwrap_or_default();
    Ok((name.trim().to_string(), value))
}

/// A value as written on a command line: TOML, or else text.
fn value_of(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok().and_then(|mut t| t.remove("value"));
    parsed.unwrap_or_else(|| Value::String(text.into()))
}

/// A line with a small number in scientific notation.
fn readable(line: &str) -> String {
    match line.split_once(" = ").map(|(key, value)| (key, value.parse::<f64>())) {
        Some((key, Ok(number))) if number > 0.0 && number < 1e-2 => format!("{key} = {number:e}"),
        _ => line.to_string(),
    }
}
