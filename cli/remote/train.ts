// `train`: from a file or a dataset to a trained model, watched.
import { existsSync, readFileSync } from 'node:fs'
import { type CreateJobInput, isTuneryError, type JobConfig, type JobEstimate, type Method } from '../../sdk/index.ts'
import { CommandError, Interrupted, UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { decimal, type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { confirm, note, show } from '../support/output.ts'
import { type Connection, connect } from '../support/service.ts'
import { clean, duration, number, price } from '../support/text.ts'
import { describeValidation, untilRead, uploadFile } from './datasets.ts'
import { leftRunning, watchJob } from './watch.ts'

interface TrainOptions extends GlobalOptions {
  model?: string
  name?: string
  method?: string
  epochs?: number
  learningRate?: number
  batchSize?: number
  config?: string
  evaluation?: string
  estimate: boolean
  detach?: boolean
  yes?: boolean
}

export function addTrainCommand(program: Program): void {
  runs(
    program
      .command('train')
      .description(
        'upload a file if it is one, check the rows, tell what the training takes, start it and follow it; Ctrl-C leaves ' +
          'it running',
      )
      .argument('<dataset>', 'a file of examples, or the id of a dataset')
      .option('--model <base>', 'a base model, or an own model to go on from')
      .option('--name <name>', 'of the job and of the model that it makes')
      .option('--method <method>', 'lora, qlora or full')
      .option('--epochs <count>', 'passes over the rows', wholeNumber('--epochs', 1))
      .option('--learning-rate <rate>', 'at its peak', decimal('--learning-rate'))
      .option('--batch-size <rows>', 'rows per step', wholeNumber('--batch-size', 1))
      .option('--config <file>', 'JSON of everything else; docs/reference/job-config.md has the fields of config')
      .option('--evaluation <id>', 'an evaluation whose rows and graders score the result')
      .option('--no-estimate', 'start without measuring what it takes')
      .option('--detach', 'start and do not follow')
      .option('-y, --yes', 'do not ask'),
    train,
  )
}

async function train(datasetOrFile: string, options: TrainOptions): Promise<void> {
  if (!options.model) throw new UsageError(`Give the model to start from: ${typed('train FILE --model BASE')}`)
  const config = readConfig(options)
  const connection = connect(options)
  const { tunery } = connection
  const abort = new AbortController()
  let uploaded: string | undefined
  let started = false
  const interrupt = () => (abort.signal.aborted ? process.exit(130) : abort.abort())
  process.on('SIGINT', interrupt)
  try {
    // Before a large file is uploaded for a model that is not there.
    await (options.model.includes('/') ? tunery.hub.get(options.model) : tunery.models.get(options.model))
    const dataset = await findDataset(connection, datasetOrFile, abort.signal)
    if (dataset.uploaded) uploaded = dataset.id
    await check(connection, dataset.id, options, abort.signal)
    const body: CreateJobInput = {
      model_id: options.model,
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
    throw new Interrupted(`No training was started.${uploaded ? ` The file is uploaded as ${uploaded}.` : ''}`)
  } finally {
    process.off('SIGINT', interrupt)
  }
}

/** What --config names, with the single options over it. */
function readConfig({ config: file, method, epochs, learningRate, batchSize }: TrainOptions): JobConfig | undefined {
  const given = file === undefined ? {} : readJson(file)
  const training = {
    ...(given.training_config as object | undefined),
    ...(epochs !== undefined && { epochs }),
    ...(learningRate !== undefined && { learning_rate: learningRate }),
    ...(batchSize !== undefined && { batch_size: batchSize }),
  }
  const config: JobConfig = {
    ...given,
    // The service says which methods there are.
    ...(method !== undefined && { method: method as Method }),
    ...(Object.keys(training).length > 0 && { training_config: training }),
  }
  return Object.keys(config).length > 0 ? config : undefined
}

/** A file with a JSON object. Throws a UsageError. */
export function readJson(file: string): Record<string, unknown> {
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
  given: string,
  signal: AbortSignal,
): Promise<{ id: string; uploaded: boolean }> {
  if (existsSync(given)) {
    const { id, rows } = await uploadFile(tunery, given, {}, signal)
    note(`${given} is uploaded as ${id}: ${number(rows)} rows.`)
    return { id, uploaded: true }
  }
  if (!given.startsWith('ds_'))
    throw new UsageError(`There is no file ${given}, and it is not the id of a dataset (ds_…).`)
  return { id: (await untilRead(tunery, await tunery.datasets.get(given, { signal }), signal)).id, uploaded: false }
}

/** Throws a CommandError if rows cannot be trained on. */
async function check({ tunery }: Connection, id: string, options: TrainOptions, signal: AbortSignal): Promise<void> {
  // Tokens are counted with a base; an own model has that of its own base.
  const base = options.model!.includes('/') ? options.model : undefined
  const found = await tunery.datasets
    .validate(id, base === undefined ? {} : { model_id: base }, { signal })
    .catch((error) => {
      // The weights may not be here yet: the job brings them.
      if (base !== undefined && isTuneryError(error, 'model_not_available'))
        return tunery.datasets.validate(id, {}, { signal })
      throw error
    })
  if (!found.valid || (found.warning_count ?? 0) > 0)
    note(describeValidation(found, process.stderr, found.valid ? 3 : 20))
  if (!found.valid)
    throw new CommandError(
      `No training was started. Mend these rows in the file and run the command again; ${id} can be deleted.`,
    )
}

async function estimate(connection: Connection, body: CreateJobInput, options: TrainOptions, signal: AbortSignal) {
  note('Some steps are tried, to tell what the training takes.')
  let found: JobEstimate
  try {
    found = await connection.tunery.jobs.estimate(body, { signal, maxRetries: 0 })
  } catch (error) {
    // Weights or the training environment are still to come: the job waits for them.
    if (!isTuneryError(error, 'training_not_ready', 'model_not_available', 'overloaded')) throw error
    return note(`It cannot be estimated now: ${clean(error.message)}`)
  }
  note(describeEstimate(found))
  if (!found.fits)
    throw new CommandError(
      'No training was started: it needs more memory than is free. Method qlora, a smaller batch_size or a smaller ' +
        'max_length need less.',
    )
  if (options.yes || options.json || !process.stdin.isTTY) return
  if (!(await confirm('Start it?'))) throw new CommandError('No training was started.')
}

function describeEstimate({
  seconds,
  peak_memory_mb,
  available_memory_mb,
  tokens,
  steps,
  price: cost,
}: JobEstimate): string {
  const gigabytes = (mb: number) => `${(mb / 1000).toFixed(1)} GB`
  return [
    seconds !== null && `about ${duration(seconds)}`,
    `${gigabytes(peak_memory_mb)} of memory (${gigabytes(available_memory_mb)} are free)`,
    steps !== null && `${number(steps)} steps`,
    tokens !== null && `${number(tokens)} tokens`,
    cost && cost.amount > 0 && price(cost.amount, cost.currency),
  ]
    .filter(Boolean)
    .join(', ')
}
