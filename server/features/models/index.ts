// The models that accounts own: registry, lineage, import of adapters, what a training starts from and an export has.
export {
  Artifact,
  draftsKey,
  modelDir,
  modelFiles,
  modelKey,
  moveToModels,
  rowsFile,
  type StoredModel,
  storeDrafts,
} from './artifacts.ts'
export { type ExportSource, importanceMatrixFile, referenceAnswersFile } from './export-source.ts'
export { ftName } from './ft-name.ts'
export { labelColumns, labelsOf } from './labels.ts'
export { sourceColumns } from './lineage.ts'
export { type MadeModel, type ServableModel, type ServedBase, servedBaseOf, type TunedModels } from './registry.ts'
export { adapterSpec, type StartingModel } from './starting-model.ts'
export { parentOf, readResolvedConfig, recipeOf } from './training.ts'
