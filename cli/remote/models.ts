// `models`: base models and the account's own.
import { setTimeout as sleep } from 'node:timers/promises'
import { Option } from 'commander'
import { isMet, trialsOf } from '../../contract/families.ts'
import type { Model, ModelsQuery, Need, TunedModel, TunedModelDetails } from '../../sdk/index.ts'
import { CommandError, UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs } from '../support/options.ts'
import { confirm, createBar, show } from '../support/output.ts'
import { connect } from '../support/service.ts'
import { bar, bytes, fields, paint, table, time } from '../support/text.ts'
import { first, type ListOptions, listOptions, pageOf } from './lists.ts'
import { idOf } from './named.ts'

const modelTasks: NonNullable<ModelsQuery['task']>[] = ['chat', 'code', 'pictures', 'thoughts', 'embeddings']
const modelSizes: Model['size'][] = ['1b', '4b', '9b', '30b', 'larger']
const modelUses: NonNullable<ModelsQuery['fits']>[] = ['lora', 'qlora', 'full', 'serve']
const modelOrders: NonNullable<ModelsQuery['sort']>[] = ['name', 'size', 'context', 'memory']
/** Between two looks at a download. */
const poll_ms = 2000

export function addModelCommands(program: Program): Program {
  const models = program.command('models').description("base models, and the account's own")
  runs(
    listOptions(models.command('list').description("list the base models and the account's own"))
      .option('--name <text>', 'own models with this text in their name')
      .option('--available', 'only base models whose weights are on the machine of the service'),
    listModels,
  )
  runs(
    models
      .command('catalogue')
      .description('what each base model needs, whether this machine has it, and which is recommended')
      .option('--search <text>', 'a part of the id, name, description or family')
      .addOption(new Option('--task <task>', 'what it is for').choices(modelTasks))
      .addOption(new Option('--size <size>', 'all weights, at most: 1, 5, 10 or 40 billion').choices(modelSizes))
      .addOption(new Option('--fits <use>', 'only what this machine can train so, or serve').choices(modelUses))
      .addOption(new Option('--sort <order>', 'its order; memory: that of a training by lora').choices(modelOrders)),
    showCatalogue,
  )
  runs(
    models
      .command('show')
      .description('what a model is and where it comes from')
      .argument('<model>', 'id of a base or of an own model'),
    showModel,
  )
  runs(
    models
      .command('download')
      .description('let the service download a base model')
      .argument('<model>', 'id of a base model')
      .option('--detach', 'do not wait for its end'),
    downloadModel,
  )
  runs(
    models
      .command('delete')
      .description('delete an own model that nothing needs')
      .argument('<model>', 'id of the model')
      .option('-y, --yes', 'do not ask'),
    deleteModel,
  )
  return models
}

async function listModels(options: GlobalOptions & ListOptions & { available?: boolean }): Promise<void> {
  const { tunery } = connect(options)
  const [{ models }, { items: tuned, more }] = await Promise.all([
    tunery.hub.list(),
    first(tunery.models.list({ limit: pageOf(options), name: options.name }), options),
  ])
  const here = models.filter(({ weights }) => weights.available)
  const bases = options.available ? here : [...here, ...models.filter(({ weights }) => !weights.available)]
  show(options, { bases, models: tuned }, () =>
    [
      paint('bold', 'Base models'),
      table<Model>(bases, [
        { head: 'id', value: ({ id }) => id },
        { head: 'weights', value: weightsOf },
        { head: 'context', value: ({ context_length }) => String(context_length), right: true },
        { head: 'trains by', value: ({ methods }) => methods.join(', ') || '-' },
        { head: 'license', value: licenseOf, flexible: true },
      ]),
      '',
      paint('bold', 'Your models'),
      tuned.length === 0 ? `None yet: ${typed('train FILE')} makes one.` : ownTable(tuned),
      ...(more ? [more] : []),
    ].join('\n'),
  )
}

/** `4.7 GB`, or `28.4 GB (no)` where this machine has less; a dash where it is not possible. */
const needText = (need: Need | null) => (need ? `${bytes(need.mb * 1e6)}${need.fits ? '' : ' (no)'}` : '-')

async function showCatalogue(
  options: GlobalOptions & { search?: string } & Pick<ModelsQuery, 'task' | 'size' | 'fits' | 'sort'>,
): Promise<void> {
  const { tunery } = connect(options)
  const { search, task, size, fits, sort } = options
  const query = { q: search, task, size, fits, sort }
  const [{ models }, machine] = await Promise.all([tunery.hub.list(query), tunery.hub.machine()])
  const { device, cores, memory_mb, free_disk_mb, recommended } = machine
  show(options, { models, machine }, () =>
    [
      `This machine: ${device === 'gpu' ? 'a GPU with ' : `${cores} cores, `}${bytes(memory_mb * 1e6)} of memory, ` +
        `${bytes(free_disk_mb * 1e6)} of free disk. "(no)" marks what it has not enough for.`,
      recommended
        ? `Recommended: ${paint('bold', recommended.model_id)}. ${recommended.why}`
        : 'No base of the catalogue trains here.',
      '',
      models.length === 0 ? 'No base model matches.' : catalogueTable(models),
    ].join('\n'),
  )
}

const catalogueTable = (models: Model[]) =>
  table<Model>(models, [
    { head: 'id', value: ({ id }) => id },
    { head: 'for', value: ({ tasks }) => tasks.join(', '), flexible: true },
    { head: 'weights', value: ({ params_billions }) => `${Number(params_billions.toPrecision(3))}B`, right: true },
    { head: 'lora', value: ({ needs }) => needText(needs.lora), right: true },
    { head: 'qlora', value: ({ needs }) => needText(needs.qlora), right: true },
    { head: 'full', value: ({ needs }) => needText(needs.full), right: true },
    { head: 'serve', value: ({ needs }) => needText(needs.serve), right: true },
    { head: 'family', value: testedText },
  ])

const testedText = ({ tested }: Model) => {
  if (!tested) return 'not tried yet'
  const results = trialsOf(tested).filter(({ result }) => result !== 'none')
  const met = results.filter(({ result }) => isMet(result)).length
  return met === results.length ? 'all works' : `${met} of ${results.length} work`
}

const licenseOf = ({ license, gated }: Model): string => (gated ? `${license} (gated)` : license)
const gatedHelp = 'accept its license at Hugging Face, and give the service the token of that account to download it'

function weightsOf({ weights, download }: Model): string {
  if (weights.available) return weights.size_mb === null ? 'here' : `here, ${bytes(weights.size_mb * 1e6)}`
  if (download && ['queued', 'downloading', 'converting'].includes(download.status))
    return `${download.status} ${Math.round(100 * download.progress)} %`
  return weights.size_mb === null ? '-' : `-, ${bytes(weights.size_mb * 1e6)}`
}

/** The form of the weights that answers; null where it is the original without a choice. */
function answersWith({ weights: { available, keep_original, eight_bits, eight_bits_problem } }: Model): string | null {
  if (!available) return null
  if (keep_original) return 'its original weights, as set'
  if (eight_bits_problem) return `its original weights. ${eight_bits_problem}`
  if (!eight_bits) return null
  const { size_mb, original_type, distance } = eight_bits
  const share = `${(100 * distance.same_top).toFixed(1)} %`
  return (
    `an eight-bit form (${bytes(size_mb * 1e6)}, of ${original_type}): ${distance.divergence} nats from the original ` +
    `on average, the same likeliest token in ${share} of ${distance.tokens}`
  )
}

const ownTable = (models: TunedModel[]) =>
  table(models, [
    { head: 'id', value: ({ id }) => id },
    { head: 'name', value: ({ name }) => name, flexible: true },
    { head: 'base', value: ({ base_model_id }) => base_model_id },
    { head: 'method', value: ({ method }) => method },
    { head: 'size', value: ({ size_mb }) => bytes(size_mb * 1e6), right: true },
    { head: 'made', value: ({ created_at }) => time(created_at) },
  ])

const mergesAdaptersHelp =
  'merged into the weights at the end of a training: the engine cannot serve adapters of this base'

async function showModel(id: string, options: GlobalOptions): Promise<void> {
  const { tunery } = connect(options)
  if (id.includes('/')) {
    const model = await tunery.hub.get(id)
    return show(options, model, () =>
      fields([
        ['id', model.id],
        ['name', model.name],
        ['about', model.description],
        ['weights', model.weights.available ? weightsOf(model) : (model.weights.how_to_get ?? 'not here')],
        ['answers with', answersWith(model)],
        ['context', `${model.context_length} tokens`],
        ['for', model.tasks.join(', ')],
        ['trains by', model.methods.join(', ') || 'not trainable here'],
        ['adapters', model.merges_adapters ? mergesAdaptersHelp : null],
        ...(['lora', 'qlora', 'full'] as const).map((method): [string, string | null] => [
          `memory, ${method}`,
          model.needs[method] && needText(model.needs[method]),
        ]),
        ['memory to serve', model.needs.serve && needText(model.needs.serve)],
        ['disk to add it', model.needs.disk && needText(model.needs.disk)],
        ['license', licenseOf(model)],
        ['its text', model.license_url],
        ['family', model.family],
        ...(model.tested ? trialsOf(model.tested) : [{ title: 'tested', result: 'not tried yet' }]).map(
          ({ title, result }): [string, string] => [title, result],
        ),
        ['gated', model.gated ? gatedHelp : null],
      ]),
    )
  }
  const model = await tunery.models.get(await idOf(tunery, 'model', id))
  show(options, model, () =>
    fields([
      ['id', model.id],
      ['name', model.name],
      ['about', model.description],
      ['base', model.base_model_id],
      ['method', model.method],
      ['size', bytes(model.size_mb * 1e6)],
      ['made', time(model.created_at)],
      ['job', model.job_id],
      ['engine', model.comparison && (model.comparison.agrees ? 'agrees with the trainer' : model.comparison.problem)],
      ['system prompt', model.trained_with && systemPromptOf(model.trained_with)],
      ...model.lineage.steps.map((step, index): [string, string] => [
        index === 0 ? 'lineage' : '',
        `${step.name ?? step.model_id} (${[step.method, step.dataset?.name].filter(Boolean).join(', ') || 'uploaded'})`,
      ]),
    ]),
  )
}

/** With which system prompt a model is to be asked. */
const systemPromptOf = ({ system_prompt, system_prompt_text }: NonNullable<TunedModelDetails['trained_with']>) =>
  ({ same: system_prompt_text, none: 'its rows had none', varies: 'its rows had several' })[system_prompt]

async function downloadModel(id: string, options: GlobalOptions & { detach?: boolean }): Promise<void> {
  const { tunery } = connect(options)
  let model = await tunery.hub.startDownload(id)
  const progress = createBar(process.stderr, (share) => bar(share, 28, process.stderr))
  while (!options.detach && !model.weights.available) {
    const download = model.download
    if (download && (download.status === 'failed' || download.status === 'cancelled'))
      throw new CommandError(`${id} was not downloaded: ${download.error?.message ?? 'the download was cancelled.'}`)
    const total = download?.total_bytes ? ` of ${bytes(download.total_bytes)}` : ''
    progress.show(download?.progress ?? 0, `${download?.status ?? 'queued'} ${bytes(download?.bytes ?? 0)}${total}`)
    await sleep(poll_ms)
    model = await tunery.hub.get(id)
  }
  progress.end()
  show(
    options,
    model,
    model.weights.available
      ? `${id} can be called and trained.`
      : `${id} is being downloaded. '${typed(`models show ${id}`)}' tells how far it is.`,
  )
}

async function deleteModel(model: string, options: GlobalOptions & { yes?: boolean }): Promise<void> {
  const { tunery } = connect(options)
  const id = await idOf(tunery, 'model', model)
  await confirmDeletion(id, options)
  show(options, await tunery.models.delete(id), `Deleted ${id}.`)
}

/** Asks before something is deleted. Throws a UsageError without --yes where nobody can answer. */
export async function confirmDeletion(what: string, { yes }: { yes?: boolean }): Promise<void> {
  if (yes) return
  if (!process.stdin.isTTY) throw new UsageError(`Nobody is there to ask whether ${what} is to be deleted. Add --yes.`)
  if (!(await confirm(`Delete ${what}? This cannot be undone.`))) throw new CommandError('Nothing was deleted.')
}
