//! Every format is written into a temporary folder and read back; the rules about splits, fractions and classes are
//! checked on class folders, the simplest of them.

mod dataset {
    mod binary;
    mod folders;
    mod hostile;
    mod images;
    mod manifest;
    mod parquet;
    #[cfg(unix)]
    mod special;
    mod splits;
    mod tar;
}
