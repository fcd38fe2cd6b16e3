//! Checkpoints: a folder with weights, configuration, preprocessing and class names, or a published weights file.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vit_graph::device::Parameters;
use vit_graph::ops::Parameter;
use vit_preprocess::Preprocess;
use vit_storage::LocalCopy;
use vit_system::{atomic_file, hash, regular_file};

use crate::adapt::{Leniency, adapt};
use crate::builtin;
use crate::clip::{Clip, open_clip};
use crate::config::{self, Config};
use crate::error::ModelError;
use crate::guess::guess;
use crate::hugging_face::{self, ModelType};
use crate::labels;
use crate::run::{files_of_model, model_of};
use crate::variant::{suggestions, variant};
use crate::vit::{Vit, quick_gelu};
use crate::weights::safetensors::{self, Dtype};
use crate::weights::{self, Scheme, Tensor, Weights, names};

/// The weights files of a folder, in order of preference.
const WEIGHTS: [&str; 6] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "model.npz",
    "pytorch_model.bin",
    "pytorch_model.pt",
    "pytorch_model.pth",
];

/// Extensions of weights files under other names.
const ENDINGS: [&str; 5] = ["safetensors", "npz", "pt", "pth", "bin"];

/// A model with exactly its weights, under canonical names.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Its configuration.
    pub config: Config,
    /// Its weights.
    pub weights: Weights,
    /// The library whose names the weights had.
    pub scheme: Scheme,
    /// The weights file.
    pub source: PathBuf,
    /// What was changed when it was opened, one line each.
    pub report: Vec<String>,
    /// How its texts become tokens, if it has a text tower and the folder has the file.
    pub tokenizer: Option<TokenizerFiles>,
}

/// The files of a tokeniser.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: String,
    /// `tokenizer_config.json`; null where there is none.
    pub config: Value,
}

impl TokenizerFiles {
    const TOKENIZER: &str = "tokenizer.json";
    const CONFIG: &str = "tokenizer_config.json";
    const OPEN_CLIP_CLEANING: &str = "open_clip_clean";

    /// Those of a model's folder.
    pub fn read(folder: &Path) -> Result<Option<Self>, ModelError> {
        let path = folder.join(Self::TOKENIZER);
        match regular_file::read_to_string(&path) {
            Ok(tokenizer) => {
                let config = read_json(&folder.join(Self::CONFIG))?.unwrap_or_default();
                Ok(Some(TokenizerFiles { tokenizer, config }))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ModelError::Io { path, error }),
        }
    }

    /// Has texts cleaned as OpenCLIP does, unless the configuration says how.
    fn clean_as(&mut self, cleaning: &str) {
        if self.config.is_null() {
            self.config = json!({});
        }
        if let Value::Object(config) = &mut self.config {
            config.entry(Self::OPEN_CLIP_CLEANING).or_insert_with(|| cleaning.into());
        }
    }

    /// The names of the files and their text.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let config = (!self.config.is_null()).then(|| format!("{:#}\n", self.config).into());
        let tokenizer = (Self::TOKENIZER, Cow::Borrowed(self.tokenizer.as_str()));
        std::iter::once(tokenizer).chain(config.map(|config| (Self::CONFIG, config)))
    }

    fn write(&self, folder: &Path) -> Result<(), ModelError> {
        self.files().try_for_each(|(name, text)| {
            let path = folder.join(name);
            atomic_file::write(&path, text.as_bytes()).map_err(|error| ModelError::Io { path, error })
        })
    }
}

/// The layout in which a checkpoint folder is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// timm's hub: what this project reads and writes by default.
    Timm,
    /// Hugging Face's, for models that one of its classes can express.
    HuggingFace,
}

/// Changes of a checkpoint's model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Another image size, height and width.
    pub image_size: Option<[usize; 2]>,
    /// Another patch size, height and width.
    pub patch_size: Option<[usize; 2]>,
    /// Another number of classes.
    pub classes: Option<usize>,
    /// Another number of channels.
    pub channels: Option<usize>,
    /// Other classes, even if there are as many: the head is initialised anew.
    pub new_head: bool,
    /// The layers that only pre-training without labels has are left out.
    pub encoder_alone: bool,
}

/// How to open a checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions<'a> {
    /// A weights file other than the one that the folder's names suggest.
    pub weights: Option<&'a Path>,
    /// Initialise missing tensors anew and drop others that the model does not have.
    pub allow_unmatched: bool,
    /// The image size, if not that of the configuration.
    pub image_size: Option<[usize; 2]>,
}

impl Checkpoint {
    /// Opens a checkpoint folder, a weights file, or the best model of a run's folder. Without a `config.json` beside the
    /// weights, the configuration is guessed from them. [`builtin::NAME`] means the built-in model, unless there is a file of
    /// that name.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Checkpoint, ModelError> {
        if builtin::is_meant(path) {
            return builtin::open();
        }
        if vit_storage::is_url(path) {
            return Checkpoint::download(path, options);
        }
        let path = &*model_of(path);
        let metadata = fs::metadata(path).map_err(|error| ModelError::Io { path: path.into(), error })?;
        let folder = if metadata.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let open_clip = if metadata.is_dir() { read_open_clip(folder)? } else { None };
        let from_open_clip = open_clip.is_some();
        let source = match options.weights {
            Some(weights) => weights.to_path_buf(),
            None if open_clip.is_some() => find_open_clip_weights(path)?,
            None if metadata.is_dir() => find_weights(path)?,
            None => path.to_path_buf(),
        };
        let unknown = read_json(&folder.join("config.json"))?.filter(|json| config::unknown_name(json).is_some());
        let described = if unknown.is_some() { None } else { read_described(folder)? };
        let raw = if source.extension().is_some_and(|e| e == "json") {
            safetensors::read_index(&source)?
        } else {
            weights::read(&source)?
        };
        let leniency = Leniency { unmatched: options.allow_unmatched, ..Leniency::default() };
        let (open_clip, guess_report) = match open_clip {
            None if described.is_none() && open_clip::recognises(&raw) => open_clip::guess(&raw, &source).unzip(),
            read => (read, None),
        };
        let both_towers =
            open_clip.and_then(|config| Some((config.architecture.downcast_ref::<Clip>()?.clone(), config)));
        let opened = match (both_towers, described) {
            (Some((clip, config)), _) => {
                let mut weights = open_clip::to_canonical(raw, &clip)?;
                let scheme = Scheme::Timm;
                let mut report = guess_report.unwrap_or_default();
                report.extend(adapt(&mut weights, scheme, &config.architecture, &config.architecture, leniency)?);
                Ok((config, weights, scheme, report))
            }
            (_, Some(Described { mut config, kind: Some(kind), json }))
                if kind.recognises(&raw, &config.architecture) =>
            {
                let tensors = raw.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape.clone())).collect();
                let (model, scheme) = (config.architecture.clone(), Scheme::HuggingFace);
                kind.to_canonical(raw, &model)
                    .map_err(ModelError::from)
                    .and_then(|mut weights| {
                        let mut report: Vec<String> =
                            without_missing_pretraining(&mut config, &weights).into_iter().collect();
                        let model = &config.architecture;
                        report.extend(adapt(&mut weights, scheme, model, model, leniency)?);
                        Ok((config, weights, scheme, report))
                    })
                    .map_err(|error| match &kind.misfits(&tensors, &json, &model)[..] {
                        [] => error,
                        lines => ModelError::unmatched(lines),
                    })
            }
            (_, described) => canonical(raw, described.as_ref()).and_then(|(mut weights, scheme)| {
                let (mut config, mut report) = match described {
                    Some(Described { config, .. }) => (config, Vec::new()),
                    None => guessed(unknown, folder, &source, &weights, scheme)?,
                };
                report.extend(without_missing_pretraining(&mut config, &weights));
                report.extend(adapt(&mut weights, scheme, &config.architecture, &config.architecture, leniency)?);
                Ok((config, weights, scheme, report))
            }),
        };
        let (mut config, weights, scheme, mut report) = opened?;
        report.extend(name_classes(&mut config));
        let image_size = options.image_size.unwrap_or(config.preprocessing.image_size);
        let has_text = config.architecture.downcast_ref::<Clip>().is_some();
        let mut tokenizer = if has_text { TokenizerFiles::read(folder)? } else { None };
        if from_open_clip
            && let Some(files) = &mut tokenizer
            && let Some(json) = read_json(&folder.join(open_clip::CONFIG))?
        {
            files.clean_as(open_clip::cleaning(&json));
        }
        let mut checkpoint = Checkpoint { config, weights, scheme, source, report, tokenizer };
        checkpoint.change(Changes { image_size: Some(image_size), ..Changes::default() })?;
        Ok(checkpoint)
    }

    /// A model by name, with weights that a program has in memory under the names of any known library. It has as many classes
    /// as the weights have; without a head it has none.
    pub fn from_weights(model: &str, raw: Weights, options: OpenOptions) -> Result<Checkpoint, ModelError> {
        let Some(found) = variant(model) else {
            return Err(ModelError::UnknownModel { name: model.into(), suggestions: suggestions(model) });
        };
        let mut config = Config::from(found);
        let (mut weights, scheme) = canonical(raw, None)?;
        let rows = |head: &&str| weights.tensors.get(&format!("{head}.weight"))?.shape.first().copied();
        let classes = config.architecture.heads().iter().find_map(rows).unwrap_or(0);
        let mut report = Vec::new();
        if classes != config.architecture.classes() {
            report.push(format!("classes: {classes}, as the weights have"));
            config.architecture.set_classes(classes);
        }
        report.extend(name_classes(&mut config));
        let leniency = Leniency { unmatched: options.allow_unmatched, ..Leniency::default() };
        report.extend(adapt(&mut weights, scheme, &config.architecture, &config.architecture, leniency)?);
        let mut checkpoint = Checkpoint { config, weights, scheme, source: model.into(), report, tokenizer: None };
        checkpoint.change(Changes { image_size: options.image_size, ..Changes::default() })?;
        Ok(checkpoint)
    }

    /// Opens a copy of a checkpoint in remote storage.
    fn download(url: &Path, options: OpenOptions) -> Result<Checkpoint, ModelError> {
        const BESIDE: [&str; 4] =
            ["config.json", "preprocessor_config.json", TokenizerFiles::TOKENIZER, TokenizerFiles::CONFIG];
        let copy = LocalCopy::of(url, &files_of_model, &BESIDE);
        let copy = copy.map_err(|error| ModelError::Io { path: url.into(), error })?;
        let mut checkpoint = Checkpoint::open(copy.path(), options)?;
        checkpoint.source = match checkpoint.source.strip_prefix(copy.path()) {
            Ok(inside) if inside != Path::new("") => url.join(inside),
            _ => url.into(),
        };
        Ok(checkpoint)
    }

    /// Changes the model and adapts the weights, with a line in the report for every change. On an error nothing changes.
    pub fn change(&mut self, changes: Changes) -> Result<(), ModelError> {
        let mut target = self.config.clone();
        if let Some(size) = changes.patch_size {
            match target.architecture.downcast_mut::<Vit>().filter(|vit| vit.backbone.is_none()) {
                Some(vit) => vit.patch_size = size,
                None => return Err(ModelError::PatchSize("this model does not cut its images into patches".into())),
            }
            let image = changes.image_size.unwrap_or(target.architecture.image_size());
            if let Some(reason) = target.architecture.refuses_image_size(image) {
                return Err(ModelError::PatchSize(reason));
            }
        }
        if let Some(size) = changes.image_size {
            let another = size != target.architecture.image_size();
            if let Some(reason) = target.architecture.refuses_image_size(size).filter(|_| another) {
                return Err(ModelError::ImageSize(reason));
            }
            target.architecture.set_image_size(size);
            target.preprocessing.image_size = size;
        }
        if let Some(channels) = changes.channels.filter(|&c| c != target.architecture.channels()) {
            target.architecture.set_channels(channels);
            let mean = |values: &[f32]| vec![values.iter().sum::<f32>() / values.len().max(1) as f32; channels];
            (target.preprocessing.mean, target.preprocessing.std) =
                (mean(&target.preprocessing.mean), mean(&target.preprocessing.std));
        }
        if let Some(classes) = changes.classes.filter(|&c| c != target.architecture.classes()) {
            target.architecture.set_classes(classes);
            target.labels.clear();
        }
        if changes.encoder_alone {
            target.architecture.without_pretraining();
        }
        if target == self.config && !changes.new_head {
            return Ok(());
        }
        if changes.new_head {
            target.labels.clear();
        }
        let leniency = Leniency {
            new_head: changes.classes.is_some() || changes.new_head,
            other_classes: changes.new_head,
            unmatched: false,
        };
        let (from, to) = (&self.config.architecture, &target.architecture);
        let report = adapt(&mut self.weights, self.scheme, from, to, leniency)?;
        self.config = target;
        self.report.extend(report);
        Ok(())
    }

    /// Refuses weights with elements that are NaN or infinite, naming the first parameter that has them.
    pub fn check_finite(&self) -> Result<(), ModelError> {
        for (name, tensor) in &self.weights.tensors {
            let elements = tensor.data.iter().filter(|value| !value.is_finite()).count();
            if elements > 0 {
                let (path, name, of) = (self.source.clone(), name.clone(), tensor.data.len());
                return Err(ModelError::NonFinite { path, name, elements, of });
            }
        }
        Ok(())
    }

    /// A hash of weights and configuration, 32 hexadecimal digits: equal for checkpoints that give the same model.
    pub fn fingerprint(&self) -> String {
        let config = config::timm_config(&self.config).to_string();
        let shapes: Vec<_> = self.weights.tensors.iter().map(|(name, tensor)| (name, &tensor.shape)).collect();
        let shapes = format!("{shapes:?}");
        let mut parts = vec![config.as_bytes(), shapes.as_bytes()];
        parts.extend(self.weights.tensors.values().map(|tensor| bytemuck::cast_slice::<f32, u8>(&tensor.data)));
        hash::fingerprint(&parts)
    }

    /// Writes a folder that the layout's library opens, too. Every file is complete before it gets its name.
    pub fn save(&self, folder: &Path, layout: Layout, dtype: Dtype) -> Result<(), ModelError> {
        let unwritable = |what| ModelError::Folder { path: folder.into(), what };
        let (weights, files) = match layout {
            Layout::Timm => (Cow::Borrowed(&self.weights), vec![("config.json", config::timm_config(&self.config))]),
            Layout::HuggingFace => {
                let config = config::hugging_face_config(&self.config).map_err(unwritable)?;
                let preprocessor = config::hugging_face_preprocessor(&self.config);
                let weights = hugging_face::hugging_face_weights(&self.weights, &self.config.architecture)?;
                (Cow::Owned(weights), vec![("config.json", config), ("preprocessor_config.json", preprocessor)])
            }
        };
        fs::create_dir_all(folder).map_err(|error| ModelError::Io { path: folder.into(), error })?;
        let names = |name: &str| self.config.architecture.timm_name(name).filter(|_| layout == Layout::Timm);
        let named: Vec<(Cow<str>, &Tensor)> = weights.renamed(names);
        let tensors = named.iter().map(|(name, t)| (&**name, t.shape.as_slice(), t.data.as_slice()));
        safetensors::write(&folder.join("model.safetensors"), tensors, dtype, &self.weights.metadata)?;
        for (name, json) in files {
            let path = folder.join(name);
            write_json(&path, &json).map_err(|error| ModelError::Io { path, error })?;
        }
        self.tokenizer.as_ref().map_or(Ok(()), |tokenizer| tokenizer.write(folder))
    }
}

/// Names the classes of a checkpoint that does not, if their number says what they are.
fn name_classes(config: &mut Config) -> Option<String> {
    let names = labels::usual(config.architecture.classes()).filter(|_| config.labels.is_empty())?;
    config.labels = names;
    Some("class names: ImageNet's, since the checkpoint has 1000 classes and names none".into())
}

fn write_json(path: &Path, json: &Value) -> std::io::Result<()> {
    atomic_file::write(path, format!("{json:#}\n"))
}

fn read_json(path: &Path) -> Result<Option<Value>, ModelError> {
    let text = match regular_file::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ModelError::Io { path: path.into(), error }),
    };
    let json = serde_json::from_str(&text);
    json.map(Some).map_err(|error| ModelError::Config { path: path.into(), what: format!("not valid JSON: {error}") })
}

/// The configuration of a folder, if it has one.
pub fn read_config(folder: &Path) -> Result<Option<Config>, ModelError> {
    Ok(read_described(folder)?.map(|described| described.config))
}

/// A folder's configuration.
struct Described {
    config: Config,
    /// The model type, if it is one of transformers'.
    kind: Option<&'static ModelType>,
    /// The file.
    json: Value,
}

/// The configuration of OpenCLIP's folder. Where a `config.json` of Hugging Face is beside it, that one has both towers, too;
/// timm's has the image tower alone.
fn read_open_clip(folder: &Path) -> Result<Option<Config>, ModelError> {
    let beside = read_json(&folder.join("config.json"))?;
    if beside.is_some_and(|json| json.get("architecture").is_none()) {
        return Ok(None);
    }
    let path = folder.join(open_clip::CONFIG);
    let Some(json) = read_json(&path)? else { return Ok(None) };
    open_clip::parse(&json).map(Some).map_err(|what| ModelError::Config { path, what })
}

fn find_open_clip_weights(folder: &Path) -> Result<PathBuf, ModelError> {
    let usual = open_clip::WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    usual.map_or_else(|| find_weights(folder), Ok)
}

fn read_described(folder: &Path) -> Result<Option<Described>, ModelError> {
    let path = folder.join("config.json");
    let Some(json) = read_json(&path)? else { return Ok(None) };
    let preprocessor = read_json(&folder.join("preprocessor_config.json"))?;
    let config = config::parse(&json, preprocessor.as_ref()).map_err(|what| ModelError::Config { path, what })?;
    Ok(Some(Described { config, kind: hugging_face::model_type(&json), json }))
}

/// Weights under canonical names. Of timm's, a mask token is one of them only where the model is known to have it.
fn canonical(raw: Weights, described: Option<&Described>) -> Result<(Weights, Scheme), ModelError> {
    let pretraining = described.and_then(|described| described.config.architecture.pretraining());
    let token = raw.tensors.get("mask_token").filter(|_| pretraining.is_some()).cloned();
    let (mut weights, scheme) = names::canonical(raw)?;
    if let Some(token) = token {
        weights.tensors.entry("mask_token".into()).or_insert(token);
    }
    Ok((weights, scheme))
}

/// A file may have the encoder alone of a model that was pre-trained without labels.
fn without_missing_pretraining(config: &mut Config, weights: &Weights) -> Option<String> {
    let prefixes = config.architecture.pretraining()?.prefixes();
    let of_pretraining = |name: &String| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if weights.tensors.keys().any(of_pretraining) {
        return None;
    }
    config.architecture.without_pretraining();
    Some("the weights have the encoder alone, without the layers of pre-training".into())
}

/// The configuration of weights without one, or with one whose name is not known, and what to report about it.
fn guessed(
    unknown: Option<Value>,
    folder: &Path,
    source: &Path,
    weights: &Weights,
    scheme: Scheme,
) -> Result<(Config, Vec<String>), ModelError> {
    let found = guess(weights, scheme);
    if let Some(json) = unknown {
        let path = folder.join("config.json");
        let config = unknown_config(&json, found).map_err(|what| ModelError::Config { path, what })?;
        let name = config.name.as_deref().unwrap_or_default();
        let line = format!("no model is known by the name `{name}`; it is what its weights and arguments say");
        return Ok((config, vec![line]));
    }
    let mut config = found.map_err(|what| ModelError::Config { path: source.into(), what })?;
    let mut report = quick_gelu::configure(&mut config, source);
    report.extend(preprocessing_of_file(&mut config, scheme, source));
    Ok((config, report))
}

/// The configuration of a model whose name is not known, from its weights and the arguments in its file.
fn unknown_config(json: &Value, guessed: Result<Config, String>) -> Result<Config, String> {
    let name = config::unknown_name(json).unwrap_or_default();
    let unknown = |why: String| format!("the architecture `{name}` is not known here, and {why}");
    config::parse_unknown(json, guessed.map_err(unknown)?).map_err(unknown)
}

/// Facebook's repositories, whose files differ from Google's in nothing but the name, normalise colours as for ImageNet.
fn preprocessing_of_file(config: &mut Config, scheme: Scheme, source: &Path) -> Option<String> {
    let file = source.file_name()?.to_string_lossy().to_lowercase();
    let repository = ["deit", "dino", "mae", "jepa"].into_iter().find(|name| file.contains(name))?;
    let Preprocess { mean, std, .. } = Preprocess::imagenet();
    let applies = scheme == Scheme::Timm && config.preprocessing.mean != mean && config.architecture.channels() == 3;
    applies.then(|| {
        (config.preprocessing.mean, config.preprocessing.std) = (mean, std);
        format!("preprocessing: ImageNet's mean and deviation, since the file's name has `{repository}` in it")
    })
}

/// The weights file of a folder: one of the usual names, or the only one with a known extension.
fn find_weights(folder: &Path) -> Result<PathBuf, ModelError> {
    if let Some(found) = WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.is_file()) {
        return Ok(found);
    }
    let entries = fs::read_dir(folder).map_err(|error| ModelError::Io { path: folder.into(), error })?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().and_then(|e| e.to_str()).is_some_and(|e| ENDINGS.contains(&e)))
        .filter(|path| path.file_name().is_none_or(|name| name != "io.safetensors"))
        .collect();
    found.sort();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(ModelError::Folder {
            path: folder.into(),
            what: format!(
                "there are no weights here (looked for {}, or one file ending in .{})",
                WEIGHTS.join(", "),
                ENDINGS.join(", .")
            ),
        }),
        many => {
            let names: Vec<String> =
                many.iter().filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned())).collect();
            Err(ModelError::Folder {
                path: folder.into(),
                what: format!("there are several weights files in this folder; give one of them: {}", names.join(", ")),
            })
        }
    }
}

impl Parameters for Weights {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        self.tensors.remove(&parameter.name).map(|tensor| Cow::Owned(tensor.data))
    }

    fn held_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| 4 * tensor.data.len() as u64).sum()
    }
}

/// Lends weights, where several graphs are compiled with them.
impl Parameters for &Weights {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        self.tensors.get(&parameter.name).map(|tensor| Cow::Borrowed(tensor.data.as_slice()))
    }
}
