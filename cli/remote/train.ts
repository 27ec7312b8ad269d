// `train`: from a file or a dataset to a trained model, watched.
import { existsSync, readFileSync } from 'node:fs'
import { type CreateJobInput, isTuneryError, type JobConfig, type JobEstimate, type Method } from '../../sdk/index.ts'
import { CommandError, Interrupted, UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { decimal, type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { confirm, note, show } from '../support/output.ts'
import { type Connection, connect } from '../support/service.ts'
import { clean, duration, number, price } from '../support/text.ts'
import { checkRows, describeValidation, untilRead, uploadFile } from './datasets.ts'
import { idOf } from './named.ts'
import { leftRunning, watchJob } from './watch.ts'

interface TrainOptions extends GlobalOptions {
  model?: string
  name?: string
  method?: string
  epochs?: number
  learningRate?: number
  batchSize?: number
  experts?: boolean
  config?: string
  evaluation?: string
  /** A share; false: none. */
  holdOut: number | boolean
  estimate: boolean
  detach?: boolean
  yes?: boolean
}

export function addTrainCommand(program: Program): void {
  runs(
    program
      .command('train')
      .description(
        'train a model: upload a file, check its rows, estimate time and memory, start the job and follow it; Ctrl-C ' +
          'leaves it running',
      )
      .argument('<dataset>', 'a file of examples, or the id or unique name of a dataset')
      .option('--model <model>', 'a base model, or one of your models to continue from; default: the recommended base')
      .option('--name <name>', 'of the job and of the model that it makes')
      .option('--method <method>', 'lora, qlora or full')
      .option('--epochs <count>', 'passes over the rows', wholeNumber('--epochs', 1))
      .option('--learning-rate <rate>', 'at its peak', decimal('--learning-rate'))
      .option('--batch-size <rows>', 'rows per step', wholeNumber('--batch-size', 1))
      .option('--experts', 'train the experts of a mixture too; by default where their adapters fit into the memory')
      .option('--no-experts', 'leave the experts of a mixture as they are')
      .option('--config <file>', 'JSON of everything else; docs/reference/job-config.md has the fields of config')
      .option('--evaluation <id>', 'an evaluation whose rows and graders score the result')
      .option(
        '--hold-out <share>',
        'share of the rows to validate on and not train on',
        decimal('--hold-out'),
        heldOutShare,
      )
      .option('--no-hold-out', 'train on all rows')
      .option('--no-estimate', 'start without an estimate')
      .option('--detach', 'start without following the job')
      .option('-y, --yes', 'do not ask'),
    train,
  )
}

async function train(datasetOrFile: string, options: TrainOptions): Promise<void> {
  const fromFile = readConfig(options)
  const connection = connect(options)
  const { tunery } = connection
  const abort = new AbortController()
  let uploaded: string | undefined
  let started = false
  const interrupt = () => (abort.signal.aborted ? process.exit(130) : abort.abort())
  process.on('SIGINT', interrupt)
  try {
    // Before a large file is uploaded for a model that is not there.
    const model = await startingModel(tunery, options.model)
    const dataset = await findDataset(connection, datasetOrFile, abort.signal)
    if (dataset.uploaded) uploaded = dataset.id
    await check(connection, dataset.id, model, abort.signal)
    const config = withHeldOut(fromFile, options.holdOut, dataset.rows)
    const body: CreateJobInput = {
      model_id: model,
      dataset_id: dataset.id,
      ...(config && { config }),
      ...(options.name !== undefined && { name: options.name }),
      ...(options.evaluation !== undefined && { evaluation: options.evaluation }),
    }
    if (options.estimate) await estimate(connection, body, options, abort.signal)
    if (abort.signal.aborted) throw abort.signal.reason
    // Not aborted: a job whose answer is lost would run unknown.
    const job = await tunery.jobs.create(body)
    started = true
    process.off('SIGINT', interrupt)
    if (!options.json) note(`${job.id} is ${job.status}${job.waits_for ? `: ${job.waits_for}` : '.'}`)
    if (abort.signal.aborted) throw leftRunning(job.id)
    if (options.detach) return show(options, job, `Follow it with '${typed(`jobs follow ${job.id}`)}'.`)
    await watchJob(connection, job, options)
  } catch (error) {
    const isLeft = started || !(abort.signal.aborted || error instanceof Interrupted)
    if (isLeft) throw error
    throw new Interrupted(`No job was started.${uploaded ? ` The file was uploaded as ${uploaded}.` : ''}`)
  } finally {
    process.off('SIGINT', interrupt)
  }
}

/** The model to start from: a name stands for its id, and nothing for the recommended base. */
async function startingModel(tunery: Connection['tunery'], modelName: string | undefined): Promise<string> {
  if (modelName?.includes('/')) return (await tunery.hub.get(modelName)).id
  if (modelName !== undefined) return (await tunery.models.get(await idOf(tunery, 'model', modelName))).id
  const base = (await tunery.hub.list()).models.find(({ recommended }) => recommended)
  if (!base)
    throw new UsageError(
      `No base model is here yet. '${typed('models list')}' lists those to download; then ` +
        `${typed('train FILE --model BASE')}`,
    )
  note(`Starting from ${base.id}, the recommended base. Choose another with --model.`)
  return base.id
}

/** The share of rows that is held out unless the command says otherwise, and the fewest rows of which that is one. */
const heldOutShare = 0.1
const heldOutRows_min = 10

/** The config with rows held out, where the dataset has enough and the config names no other validation. */
function withHeldOut(config: JobConfig | undefined, share: number | boolean, rows: number): JobConfig | undefined {
  const { validation_split, validation_dataset_id } = config?.evaluation_config ?? {}
  if (typeof share !== 'number' || rows < heldOutRows_min || validation_split || validation_dataset_id) return config
  return { ...config, evaluation_config: { ...config?.evaluation_config, validation_split: share } }
}

/** What --config names, with the single options over it. */
function readConfig({
  config: file,
  method,
  epochs,
  learningRate,
  batchSize,
  experts,
}: TrainOptions): JobConfig | undefined {
  const content = file === undefined ? {} : readJson(file)
  const training = {
    ...(content.training_config as object | undefined),
    ...(epochs !== undefined && { epochs }),
    ...(learningRate !== undefined && { learning_rate: learningRate }),
    ...(batchSize !== undefined && { batch_size: batchSize }),
  }
  const lora = { ...(content.lora_config as object | undefined), ...(experts !== undefined && { experts }) }
  const config: JobConfig = {
    ...content,
    // The service says which methods there are.
    ...(method !== undefined && { method: method as Method }),
    ...(Object.keys(training).length > 0 && { training_config: training }),
    ...(Object.keys(lora).length > 0 && { lora_config: lora }),
  }
  return Object.keys(config).length > 0 ? config : undefined
}

/** A file with a JSON object. Throws a UsageError. */
function readJson(file: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(readFileSync(file, 'utf8'))
  } catch (error) {
    throw new UsageError(`${file} cannot be read as JSON: ${(error as Error).message}`)
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  throw new UsageError(`${file} is not a JSON object.`)
}

async function findDataset(
  { tunery }: Connection,
  nameOrFile: string,
  signal: AbortSignal,
): Promise<{ id: string; rows: number; uploaded: boolean }> {
  if (existsSync(nameOrFile)) {
    const { id, rows } = await uploadFile(tunery, nameOrFile, {}, signal)
    note(`Uploaded ${nameOrFile} as ${id}: ${number(rows)} rows.`)
    return { id, rows, uploaded: true }
  }
  const existing = await idOf(tunery, 'dataset', nameOrFile)
  if (!existing.startsWith('ds_')) throw new UsageError(`There is no file ${nameOrFile}, and no dataset of that name.`)
  const { id, rows } = await untilRead(tunery, await tunery.datasets.get(existing, { signal }), signal)
  return { id, rows, uploaded: false }
}

/** Throws a CommandError if rows cannot be trained on. */
async function check({ tunery }: Connection, id: string, model: string, signal: AbortSignal): Promise<void> {
  // Tokens are counted with a base; an own model has that of its own base.
  const base = model.includes('/') ? model : undefined
  const validation = await checkRows(tunery, id, base === undefined ? {} : { model_id: base }, signal).catch(
    (error) => {
      // The weights may not be here yet: the job brings them.
      if (base !== undefined && isTuneryError(error, 'model_not_available')) return checkRows(tunery, id, {}, signal)
      throw error
    },
  )
  if (!validation.valid || (validation.warning_count ?? 0) > 0)
    note(describeValidation(validation, process.stderr, validation.valid ? 3 : 20))
  if (!validation.valid)
    throw new CommandError(
      `No job was started. Fix these rows in the file and run the command again; you can delete ${id}.`,
    )
}

async function estimate(connection: Connection, body: CreateJobInput, options: TrainOptions, signal: AbortSignal) {
  note('Estimating: running a few steps…')
  let estimate: JobEstimate
  try {
    estimate = await connection.tunery.jobs.estimate(body, { signal, maxRetries: 0 })
  } catch (error) {
    // Weights or the training environment are still to come: the job waits for them.
    if (!isTuneryError(error, 'training_not_ready', 'model_not_available', 'overloaded')) throw error
    return note(`No estimate yet: ${clean(error.message)}`)
  }
  note(describeEstimate(estimate))
  if (!estimate.fits && !estimate.pauses_serving)
    throw new CommandError(
      'No job was started: not enough free memory. Try --method qlora, a smaller batch_size or a smaller max_length.',
    )
  if (options.yes || options.json || !process.stdin.isTTY) return
  if (!(await confirm('Start the job?'))) throw new CommandError('No job was started.')
}

function describeEstimate({
  seconds,
  peak_memory_mb,
  available_memory_mb,
  devices,
  pauses_serving,
  tokens,
  steps,
  generated_tokens_max,
  seconds_max,
  price: cost,
}: JobEstimate): string {
  const gigabytes = (mb: number) => `${(mb / 1000).toFixed(1)} GB`
  return [
    seconds !== null && `about ${duration(seconds)}`,
    `${gigabytes(peak_memory_mb)} of memory ${devices > 1 ? `on each of ${devices} devices ` : ''}` +
      `(${gigabytes(available_memory_mb)} free)`,
    pauses_serving && 'what is served there sleeps until it has ended',
    steps !== null && `${number(steps)} steps`,
    tokens !== null && `${number(tokens)} tokens`,
    typeof generated_tokens_max === 'number' && `at most ${number(generated_tokens_max)} generated tokens`,
    typeof seconds_max === 'number' && `in at most ${duration(seconds_max)} at the rate of an earlier job`,
    cost && cost.amount > 0 && price(cost.amount, cost.currency),
  ]
    .filter(Boolean)
    .join(', ')
}
