// `export` and `import`, which are loaded when they are used.
import { type Program, runs } from '../support/options.ts'

export function addExportCommands(program: Program): void {
  const lazy = { lazy: true }
  runs(
    program
      .command('export')
      .description('export a model, check it and download it; or resume an export (exp_…)')
      .argument('<model>', 'a model, the name of a deployment, or an export to resume')
      .option('--format <format>', 'gguf, huggingface or onnx')
      .option('--quantization <type>', 'such as Q4_K_M or int8; docs/guides/export.md lists all')
      .option('--adapter-only', 'the adapter alone, without its base')
      .option('--archive <kind>', 'tar or zip, for huggingface and onnx')
      .option('--push-to <repository>', 'a repository of the Hugging Face Hub that gets the files too')
      .option('-o, --output <file>', 'the file, or a folder that gets all files'),
    async () => (await import('./export.ts')).exportModel,
    lazy,
  )
  const group = program.command('import').description("take over jobs and evals of OpenAI's API")
  runs(
    group
      .command('openai')
      .description("start the training of a job of OpenAI's API here, and say what differs")
      .argument('<job.json>', 'what GET /v1/fine_tuning/jobs/ID answered there')
      .option('--model <base>', 'the base model here')
      .option('--training <file>', 'the rows to train on')
      .option('--validation <file>', 'the rows to evaluate')
      .option('--dry-run', 'check everything, start and keep nothing'),
    async () => (await import('./import-openai.ts')).importOpenai,
    lazy,
  )
  runs(
    group
      .command('openai-evals')
      .description("make evals of OpenAI's API here, grade the answers of their runs again, and let a model answer")
      .argument('[file.json...]', 'exported evals')
      .option('--judge <model>', 'the model that judges here')
      .option('--model <model>', 'a model that answers the rows')
      .option('--dry-run', 'say what would be made'),
    async () => (await import('./import-openai-evals.ts')).importOpenaiEvals,
    lazy,
  )
}
