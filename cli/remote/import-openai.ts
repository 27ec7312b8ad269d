// `./tunery import openai`: starts here the training that a job of OpenAI's fine-tuning API was.
import { existsSync, openAsBlob, readFileSync } from 'node:fs'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import type { CreateOpenaiJobInput, Tunery } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import type { GlobalOptions } from '../support/options.ts'
import { connect } from '../support/service.ts'
import { checkRows } from './datasets.ts'
import { explained } from './explained.ts'

interface ImportOptions extends GlobalOptions {
  model?: string
  training?: string
  validation?: string
  dryRun?: boolean
}

const number = z.union([z.literal('auto'), z.number()]).nullish()
const Hyperparameters = z.looseObject({ n_epochs: number, batch_size: number, learning_rate_multiplier: number })

/** A job as that API returns it. */
const ExportedJob = z.looseObject({
  object: z.literal('fine_tuning.job'),
  model: z.string(),
  fine_tuned_model: z.string().nullish(),
  user_provided_suffix: z.string().nullish(),
  seed: z.number().nullish(),
  metadata: z.record(z.string(), z.string()).nullish(),
  integrations: z.array(z.looseObject({ type: z.string() })).nullish(),
  validation_file: z.string().nullish(),
  method: z
    .looseObject({
      type: z.string(),
      supervised: z.looseObject({ hyperparameters: Hyperparameters.nullish() }).nullish(),
    })
    .nullish(),
  hyperparameters: Hyperparameters.nullish(),
})
type ExportedJob = z.infer<typeof ExportedJob>

interface Settings {
  model: string
  suffix?: string
  seed?: number
  metadata?: Record<string, string>
  method: { type: 'supervised'; supervised: { hyperparameters: z.infer<typeof Hyperparameters> } }
}

/** Starts the training and says what differs. Throws UsageErrors, also for what the service refuses. */
export const importOpenai = (jobFile: string, options: ImportOptions): Promise<void> =>
  explained(() => importJob(jobFile, options))

async function importJob(jobFile: string, options: ImportOptions): Promise<void> {
  const { model, training, validation } = options
  if (!model || !training)
    throw new UsageError(
      `Give the base and the rows: ${typed('import openai JOB.json --model BASE --training FILE [--validation FILE]')}`,
    )
  for (const file of [training, validation]) if (file !== undefined) requireFile(file)
  const job = readJob(jobFile)
  const settings = settingsOf(job, model)
  const differences = differencesOf(job, settings, validation !== undefined)
  const { tunery, url } = connect(options)
  await requireModel(tunery, model)
  const say = (text: string) => void (options.json || console.log(text))
  say(`What will differ from the job there:\n${differences.map((difference) => `- ${difference}`).join('\n')}`)
  const uploaded: string[] = []
  try {
    for (const file of [training, validation])
      if (file !== undefined) uploaded.push(await uploadRows(tunery, file, model, say))
  } catch (error) {
    await removeFiles(tunery, uploaded)
    throw error
  }
  const [training_file, validation_file] = uploaded as [string, string?]
  if (options.dryRun) {
    await removeFiles(tunery, uploaded)
    say('The rows can be trained on. Nothing was started or kept; leave out --dry-run to start.')
    if (options.json) console.log(JSON.stringify({ differences, valid: true }))
    return
  }
  const request: CreateOpenaiJobInput = { ...settings, training_file, ...(validation_file && { validation_file }) }
  const created = await tunery.openaiFineTuning.jobs.create(request).catch(async (error) => {
    await removeFiles(tunery, uploaded)
    throw error
  })
  say(`${created.id} is ${created.status}. Follow it at GET ${url}/fine_tuning/jobs/${created.id}`)
  if (options.json) console.log(JSON.stringify({ differences, job: created }))
}

function requireFile(file: string): void {
  if (!existsSync(file)) throw new UsageError(`There is no file ${path.resolve(file)}.`)
}

function readJob(file: string): ExportedJob {
  requireFile(file)
  let text: unknown
  try {
    text = JSON.parse(readFileSync(file, 'utf8'))
  } catch (error) {
    throw new UsageError(`${file} is not JSON: ${(error as Error).message}`)
  }
  const read = ExportedJob.safeParse(text)
  if (read.success) return read.data
  const [issue] = read.error.issues
  throw new UsageError(
    `${file} is not a job of that API: '${issue!.path.join('.') || 'the file'}': ${issue!.message}. ` +
      'Save the answer of GET https://api.openai.com/v1/fine_tuning/jobs/ID.',
  )
}

function settingsOf(job: ExportedJob, model: string): Settings {
  const type = job.method?.type ?? 'supervised'
  if (type !== 'supervised')
    throw new UsageError(`The job's method is '${type}'. Only 'supervised' jobs can be started here.`)
  const suffix = job.user_provided_suffix ?? job.fine_tuned_model?.split(':')[3]
  const hyperparameters = job.method?.supervised?.hyperparameters ?? job.hyperparameters
  return {
    model,
    ...(suffix && { suffix }),
    ...(typeof job.seed === 'number' && { seed: job.seed }),
    ...(job.metadata && { metadata: job.metadata }),
    method: { type: 'supervised', supervised: { hyperparameters: hyperparameters ?? {} } },
  }
}

function differencesOf(job: ExportedJob, { model, method }: Settings, hasValidation: boolean): string[] {
  const { learning_rate_multiplier } = method.supervised.hyperparameters
  return [
    `The base is ${model}, not ${job.model}. Compare both on rows that neither has learned.`,
    'The training is a LoRA of all linear layers; what that API trains is not published.',
    typeof learning_rate_multiplier === 'number'
      ? `The learning rate is ${learning_rate_multiplier} times this service's default for the base, not theirs.`
      : "The learning rate is this service's default for the base.",
    'The seed gives the same run here each time, but not the run there.',
    ...(job.integrations?.length ? ['Integrations are not carried over: the operator sets TUNERY_TRACKING.'] : []),
    ...(job.validation_file && !hasValidation
      ? ['The job had a validation file; give it with --validation, or nothing is validated.']
      : []),
  ]
}

/** Throws a UsageError unless the model can be called or is a base of the hub. */
async function requireModel(tunery: Tunery, model: string): Promise<void> {
  await tunery.models.callable.get(model).catch(() => tunery.hub.get(model))
}

/**
 * Uploads rows, waits until they are read, and checks them for a base. Throws a UsageError, and leaves nothing behind,
 * if one is wrong.
 */
async function uploadRows(tunery: Tunery, file: string, model: string, say: (text: string) => void): Promise<string> {
  const content = new File([await openAsBlob(file)], path.basename(file))
  const { id } = await tunery.files.upload(content, { purpose: 'fine-tune' })
  for (;;) {
    const { status, status_details } = await tunery.files.get(id)
    if (status === 'processed') break
    if (status === 'error') {
      await removeFiles(tunery, [id])
      throw new UsageError(`${file}: ${status_details}`)
    }
    await sleep(200)
  }
  const refused = await refusedByBase(tunery, id, model)
  if (refused) {
    await removeFiles(tunery, [id])
    throw new UsageError(`${file}: ${refused}`)
  }
  say(`${file} is uploaded and checked (${id}).`)
  return id
}

/** The first row that the chat template or tokenizer of a base refuses. Undefined also if the model is no base. */
async function refusedByBase(tunery: Tunery, id: string, model: string): Promise<string | undefined> {
  const base = await tunery.hub.get(model).catch(() => undefined)
  if (!base?.weights.available) return undefined
  const { valid, errors } = await checkRows(tunery, id, { model_id: model })
  return valid ? undefined : `the rows do not fit ${model}: ${errors?.[0]}`
}

async function removeFiles(tunery: Tunery, ids: string[]): Promise<void> {
  for (const id of ids) await tunery.files.delete(id)
}
