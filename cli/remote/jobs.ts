// `jobs`: what trains, waits and has ended.
import type { Job, JobEvaluation, Tunery } from '../../sdk/index.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { show, showList } from '../support/output.ts'
import { connect } from '../support/service.ts'
import {
  clean,
  duration,
  fields,
  isTerminal,
  number,
  percent,
  precise,
  sparkline,
  table,
  time,
} from '../support/text.ts'
import { all, first, type ListOptions, listOptions, pageOf } from './lists.ts'
import { confirmDeletion } from './models.ts'
import { idOf } from './named.ts'
import { rollouts } from './rollouts.ts'
import { scoresOf, watchJob } from './watch.ts'

export function addJobCommands(program: Program): void {
  const jobs = program.command('jobs').description('fine-tuning jobs')
  runs(
    listOptions(jobs.command('list').description('list the jobs, newest first'))
      .option('--name <text>', 'those with this text in their name')
      .option('--status <status>', 'queued, running, paused, completed, failed or cancelled')
      .option('--metadata <key=value>', 'those with this pair of metadata'),
    list,
  )
  const one = (name: string, description: string) =>
    jobs.command(name).description(description).argument('<job>', 'id or unique name of the job')
  runs(one('show', 'show a job: status, progress, result'), showOne)
  runs(one('follow', 'follow a job until it ends; Ctrl-C leaves it running. Exit status 1 if it has no result'), follow)
  runs(one('pause', 'pause a job and save its progress'), change)
  runs(one('resume', 'resume a paused job exactly where it stopped'), change)
  runs(one('cancel', 'cancel a job; it cannot be resumed'), change)
  runs(
    one('delete', 'delete a job that has ended, with its log and curves; its model stays').option(
      '-y, --yes',
      'do not ask',
    ),
    deleteJob,
  )
  runs(
    listOptions(
      one('rollouts', 'list the steps of a job that learns from graders, or show answers of one with their scores'),
    ).option('--step <number>', 'show the answers of this step', wholeNumber('--step', 0)),
    rollouts,
  )
  runs(
    jobs
      .command('compare')
      .description('compare settings, losses, times and scores of several jobs')
      .argument('<job...>', 'ids or unique names of the jobs'),
    compare,
  )
}

interface JobFilter {
  status?: Job['status']
  metadata?: string
}

async function list(options: GlobalOptions & ListOptions & JobFilter): Promise<void> {
  const { tunery } = connect(options)
  const query = { limit: pageOf(options), name: options.name, status: options.status, metadata: options.metadata }
  const { items, more } = await first(tunery.jobs.list(query), options)
  showList(
    options,
    items,
    [
      { head: 'id', value: ({ id }) => id },
      { head: 'name', value: ({ name }) => name, flexible: true },
      { head: 'status', value: statusOf, style: styleOf },
      { head: 'progress', value: ({ progress }) => percent(progress), right: true },
      { head: 'loss', value: ({ metrics }) => lossText(metrics.loss ?? metrics.train_loss), right: true },
      { head: 'validation', value: ({ metrics }) => lossText(metrics.validation_loss), right: true },
      { head: 'created', value: ({ created_at }) => time(created_at) },
    ],
    { empty: `No jobs yet. Start one: ${typed('train FILE')}`, more },
  )
}

const statusOf = ({ status, queue_position, paused }: Job) =>
  status === 'queued' && queue_position !== null
    ? `queued (${queue_position})`
    : paused && status === 'running'
      ? 'pausing'
      : status
const styleOf = ({ status }: Job) =>
  ({ completed: 'green', failed: 'red', running: 'cyan', queued: undefined, paused: 'yellow', cancelled: 'dim' })[
    status
  ] as 'green' | 'red' | 'cyan' | 'yellow' | 'dim' | undefined

const lossText = (loss: number | undefined) => (loss === undefined ? '' : precise(loss))

async function showOne(id: string, options: GlobalOptions): Promise<void> {
  const { tunery } = connect(options)
  const job = await tunery.jobs.get(await idOf(tunery, 'job', id))
  const evaluations = await evaluationsOf(tunery, job)
  show(options, { ...job, evaluations }, () => describeJob(job, evaluations))
}

function describeJob(job: Job, evaluations: JobEvaluation[]): string {
  const { metrics } = job
  const losses = lossesOf(evaluations)
  return fields([
    ['id', job.id],
    ['name', job.name],
    ['about', job.description],
    ['status', `${statusOf(job)}${job.status === 'running' ? `, ${percent(job.progress)}` : ''}`],
    ['waits for', job.waits_for],
    ['slowed by', job.slowed_by && (job.slowed_by === 'serving' ? 'answers of the service' : 'other programs')],
    ['error', job.error?.message],
    ['model', job.model_id],
    ['dataset', job.dataset_id],
    ['method', job.resolved_config.method.value],
    [
      'steps',
      metrics.step === undefined
        ? undefined
        : `${number(metrics.step)} of ${number(metrics.steps_total ?? metrics.step)}`,
    ],
    ['scores', scoresOf(job).join(', ')],
    ['validation', isTerminal() && losses.length > 1 ? sparkline(losses, 40) : undefined],
    ['created', time(job.created_at)],
    ['starts about', time(job.estimated_start)],
    ['ends about', time(job.estimated_completion)],
    ['ended', time(job.finished_at)],
    ['trained for', metrics.train_seconds === undefined ? undefined : duration(metrics.train_seconds)],
    ['memory', metrics.peak_memory_mb === undefined ? undefined : `${(metrics.peak_memory_mb / 1000).toFixed(1)} GB`],
    ['result', job.model],
    ['evaluation', job.result_evaluation],
  ])
}

const lossesOf = (evaluations: JobEvaluation[]) => evaluations.flatMap(({ validation_loss }) => validation_loss ?? [])
const rewardsOf = (evaluations: JobEvaluation[]) =>
  evaluations.flatMap(({ validation_reward }) => validation_reward ?? [])

/** In the order of their steps. */
const evaluationsOf = async (tunery: Tunery, { id }: Job): Promise<JobEvaluation[]> =>
  (await all(tunery.jobs.evaluations(id, { limit: 100 }))).reverse()

async function follow(id: string, options: GlobalOptions): Promise<void> {
  const connection = connect(options)
  const { tunery } = connection
  await watchJob(connection, await tunery.jobs.get(await idOf(tunery, 'job', id)), options)
}

async function deleteJob(job: string, options: GlobalOptions & { yes?: boolean }): Promise<void> {
  const { tunery } = connect(options)
  const id = await idOf(tunery, 'job', job)
  await confirmDeletion(id, options)
  show(options, await tunery.jobs.delete(id), `Deleted ${id}.`)
}

async function change(job: string, options: GlobalOptions, action: string): Promise<void> {
  const { tunery } = connect(options)
  const { jobs } = tunery
  const id = await idOf(tunery, 'job', job)
  const changed = await { pause: jobs.pause, resume: jobs.resume, cancel: jobs.cancel }[
    action as 'pause' | 'resume' | 'cancel'
  ](id)
  const next = changed.paused ? ` '${typed(`jobs resume ${id}`)}' continues it.` : ''
  show(
    options,
    changed,
    `${id} is ${changed.paused && changed.status === 'running' ? 'being paused' : changed.status}.${next}`,
  )
}

async function compare(ids: string[], options: GlobalOptions): Promise<void> {
  const { tunery } = connect(options)
  const jobs = await Promise.all(
    [...new Set(ids)].map(async (id) => {
      const job = await tunery.jobs.get(await idOf(tunery, 'job', id))
      return { ...job, evaluations: await evaluationsOf(tunery, job) }
    }),
  )
  show(options, jobs, () => comparison(jobs))
}

function comparison(jobs: (Job & { evaluations: JobEvaluation[] })[]): string {
  type Each = (typeof jobs)[number]
  const scores = (of: (job: Each) => number | undefined, format: (value: number) => string) => (job: Each) => {
    const value = of(job)
    return value === undefined ? '' : format(value)
  }
  const settings = jobs.map((job) => settingsOf(job))
  const names = [...new Set(settings.flatMap((values) => [...values.keys()]))]
  const differing = names.filter((name) => new Set(settings.map((values) => values.get(name))).size > 1)
  const lines: [name: string, value: (job: Each, index: number) => string][] = [
    ['name', ({ name }) => name],
    ['status', statusOf],
    ['model', ({ model_id }) => model_id],
    ['dataset', ({ dataset_id }) => dataset_id],
    ...differing.map((name): (typeof lines)[number] => [name, (_, index) => settings[index]!.get(name) ?? '']),
    ['train loss', scores(({ metrics }) => metrics.loss ?? metrics.train_loss, precise)],
    ['mean over the epoch', scores(({ metrics }) => metrics.train_loss, precise)],
    ['validation loss', scores(({ metrics }) => metrics.validation_loss, precise)],
    ['best validation', scores(({ evaluations }) => lossesOf(evaluations).sort((a, b) => a - b)[0], precise)],
    ['tokens right', scores(({ metrics }) => metrics.validation_accuracy, percent)],
    ['rows right', scores(({ metrics }) => metrics.validation_exact, percent)],
    ['best reward', scores(({ evaluations }) => rewardsOf(evaluations).sort((a, b) => b - a)[0], precise)],
    ['preferences right', scores(({ metrics }) => metrics.validation_reward_accuracy, percent)],
    ['trained for', scores(({ metrics }) => metrics.train_seconds, duration)],
    ['tokens', scores(({ trained_tokens }) => trained_tokens, number)],
    [
      'memory',
      scores(
        ({ metrics }) => metrics.peak_memory_mb,
        (mb) => `${(mb / 1000).toFixed(1)} GB`,
      ),
    ],
    ['result', ({ model }) => model ?? ''],
    [
      'curve',
      ({ evaluations }) => (isTerminal() && evaluations.length > 1 ? sparkline(lossesOf(evaluations), 16) : ''),
    ],
  ]
  const filled = lines.filter(([, value]) => jobs.some((job, index) => value(job, index) !== ''))
  return table(filled, [
    { head: '', value: ([name]) => name, style: () => 'dim' },
    ...jobs.map((job, index) => ({
      head: job.id,
      value: ([, value]: (typeof lines)[number]) => clean(value(job, index)),
    })),
  ])
}

/** Every setting that was in force, by its name as in a job's config. */
function settingsOf({ resolved_config }: Job): Map<string, string> {
  const flat = new Map<string, string>()
  const add = (name: string, value: unknown) => {
    if (typeof value !== 'object' || value === null) return
    if ('value' in value && 'source' in value) flat.set(name, JSON.stringify(value.value))
    else for (const [key, field] of Object.entries(value)) add(key, field)
  }
  const { tokenizer: _, ...settings } = resolved_config
  for (const [name, value] of Object.entries(settings)) add(name, value)
  return flat
}
