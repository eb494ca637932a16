//! Writes the generated CRDs into the folder named on the command line (`make crds`).

use std::path::PathBuf;

use kube::ResourceExt;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: crdgen FOLDER")?);
    for crd in berth_api::all_crds() {
        let path = folder.join(format!("{}.yaml", crd.name_any()));
        std::fs::write(&path, berth_api::crd_yaml(&crd)?)?;
    }
    Ok(())
}
