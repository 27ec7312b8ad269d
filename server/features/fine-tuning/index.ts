// Fine-tuning: jobs, the trainer and the tuned models. What the rest of the service may import.
export { modelFiles } from './artifacts.ts'
export { type ExportSource, importanceMatrixFile, referenceAnswersFile } from './models/export-source.ts'
export type { ServableModel, ServedBase, TunedModels } from './models/registry.ts'
export type { FineTuning, ResultEvaluations } from './service.ts'
export { runProgram, runToResult, runTrainer, type TrainerEvent, type TrainerExit } from './trainer.ts'
