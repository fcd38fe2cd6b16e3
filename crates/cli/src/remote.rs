//! Options of remote storage, which every command has.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

#[derive(Args)]
#[command(next_help_heading = "Files in s3://, gs://, az:// and https://")]
pub struct RemoteArguments {
    /// Keep what was read from there in this folder
    #[arg(long, global = true, env = "VIT_CACHE_DIR", value_name = "FOLDER", hide_env_values = true)]
    cache_dir: Option<PathBuf>,
    /// The size of that folder, in gigabytes
    #[arg(long, global = true, env = "VIT_CACHE_SIZE", value_name = "GB", default_value_t = 100.0)]
    cache_size: f64,
}

impl RemoteArguments {
    pub fn apply(&self) -> anyhow::Result<()> {
        match &self.cache_dir {
            Some(folder) => vit_storage::use_cache(folder, (self.cache_size.max(0.0) * 1e9) as u64)
                .with_context(|| format!("--cache-dir {}", folder.display())),
            None => Ok(()),
        }
    }
}
