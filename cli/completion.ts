// Shell completion: the scripts are those of @bomb.sh/tab; what is completed comes from the program and the service.
import { RootCommand, script } from '@bomb.sh/tab'
import type { Command } from 'commander'
import { Tunery } from '../sdk/index.ts'
import { UsageError } from './support/errors.ts'
import { invocation } from './support/invocation.ts'
import type { GlobalOptions } from './support/options.ts'
import { readProfiles } from './support/profiles.ts'
import { findService } from './support/service.ts'
import { oneLine } from './support/text.ts'

/** A shell waits while the user does: a service that is slow completes nothing. */
const timeout_ms = 1500
/** The newest so many. */
const candidatesMax = 100
const shells = ['bash', 'zsh', 'fish']

interface Candidate {
  value: string
  description: string
}

/** Where the candidates of an argument or an option come from. `files`: the shell completes names of files too. */
interface Source {
  list?(tunery: Tunery): Promise<Candidate[]>
  values?: () => string[]
  files?: boolean
}

const query = { limit: candidatesMax }
const named = (items: { id: string; name: string }[]) => items.map(({ id, name }) => ({ value: id, description: name }))
const datasets = async (tunery: Tunery) => named((await tunery.datasets.list(query)).items)
const jobs = async (tunery: Tunery) =>
  (await tunery.jobs.list(query)).items.map(({ id, status, name }) => ({
    value: id,
    description: `${status}, ${name}`,
  }))
const models = async (tunery: Tunery) => named((await tunery.models.list(query)).items)
const deployments = async (tunery: Tunery) =>
  (await tunery.deployments.list(query)).items.map(({ name, model }) => ({ value: name, description: model }))
const bases = async (tunery: Tunery) => named((await tunery.hub.list()).models)
/** All that a request can name. */
const callable = async (tunery: Tunery) => {
  const [tuned, names, { data }] = await Promise.all([
    models(tunery),
    deployments(tunery),
    tunery.models.callable.list(),
  ])
  const values = new Set([...tuned, ...names].map(({ value }) => value))
  const others = data
    .filter(({ id }) => !values.has(id))
    .map(({ id, owned_by }) => ({ value: id, description: owned_by }))
  return [...tuned, ...names, ...others]
}

/** By the name of the argument, or of the option, behind the words of the command where that matters. */
const sources: Record<string, Source> = {
  'train dataset': { list: datasets, files: true },
  dataset: { list: datasets },
  job: { list: jobs },
  deployment: { list: deployments },
  'deploy name': { list: deployments },
  evaluation: { list: async (tunery) => named((await tunery.evaluations.list(query)).items) },
  member: { list: async (tunery) => named((await tunery.members.list(query)).items) },
  key: { list: async (tunery) => named((await tunery.keys.list(query)).items) },
  webhook: {
    list: async (tunery) =>
      (await tunery.webhooks.list(query)).items.map(({ id, url }) => ({ value: id, description: url })),
  },
  'models show model': { list: async (tunery) => [...(await models(tunery)), ...(await bases(tunery))] },
  'models delete model': { list: models },
  'models download model': { list: bases },
  'export model': { list: async (tunery) => [...(await models(tunery)), ...(await deployments(tunery))] },
  'train --model': { list: async (tunery) => [...(await bases(tunery)), ...(await models(tunery))] },
  'import openai --model': { list: bases },
  'datasets validate --model': { list: bases },
  'datasets preview --model': { list: bases },
  model: { list: callable },
  other: { list: callable },
  '--model': { list: callable },
  '--baseline': { list: callable },
  '--judge': { list: callable },
  '--dataset': { list: datasets },
  '--gate': { list: async (tunery) => named((await tunery.evaluations.list(query)).items) },
  '--held-out-by': { list: jobs },
  '--evaluation': { list: async (tunery) => named((await tunery.evaluations.list(query)).items) },
  '--profile': { values: () => Object.keys(readProfiles().profiles) },
  'logout name': { values: () => Object.keys(readProfiles().profiles) },
  'profiles use name': { values: () => Object.keys(readProfiles().profiles) },
  '--status': { values: () => ['queued', 'running', 'paused', 'completed', 'failed', 'cancelled'] },
  'export --format': { values: () => ['gguf', 'huggingface', 'onnx'] },
  'datasets upload --format': { values: () => ['jsonl', 'csv', 'parquet', 'huggingface'] },
  '--method': { values: () => ['lora', 'qlora', 'full'] },
  '--archive': { values: () => ['tar', 'zip'] },
  '--by': { values: () => ['day', 'model', 'key', 'kind'] },
  '--scopes': { values: () => ['full', 'inference', 'read_only'] },
  shell: { values: () => shells },
  ...Object.fromEntries(
    ['file', 'folder', 'job.json', 'file.json', '--file', '--config', '--graders', '--output', '--from', '--gguf'].map(
      (name) => [name, { files: true }],
    ),
  ),
  '--training': { files: true },
  '--validation': { files: true },
}
const sourceOf = (words: string, name: string): Source | undefined => sources[`${words} ${name}`] ?? sources[name]

/** Prints the script that a shell sources. */
export function printScript(shell: string): void {
  if (!shells.includes(shell))
    throw new UsageError(`'${shell}' is not a shell that is completed here: ${shells.join(', ')}.`)
  if (shell === 'bash') console.log(bashFallback)
  script(shell, 'tunery', quoted(invocation().executable))
  // Names of files, where they are meant.
  if (shell === 'bash') console.log('complete -o default -F __tunery_complete tunery')
}

/** What the script takes from the package bash-completion, for machines without it. */
const bashFallback = `if ! type _get_comp_words_by_ref >/dev/null 2>&1; then
  _get_comp_words_by_ref() {
    words=("\${COMP_WORDS[@]}") cword=$COMP_CWORD
    cur=\${words[cword]} prev=\${words[cword - 1]}
  }
fi`

const quoted = (text: string) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`)

/** Thrown out of the first pass, which finds what is being completed. */
class Wanted extends Error {
  readonly source: Source

  constructor(source: Source) {
    super()
    this.source = source
  }
}

/** Prints the candidates for the last of the words, as the script reads them. Never fails: a shell would show it. */
export async function complete(program: Command, words: string[], options: GlobalOptions): Promise<void> {
  let candidates: Candidate[] | undefined
  const root = new RootCommand()
  register(root, program, (source) => (add) => {
    if (!candidates) throw new Wanted(source)
    for (const { value, description } of candidates) add(value, oneLine(description))
  })
  try {
    root.parse([...words])
  } catch (error) {
    if (!(error instanceof Wanted)) throw error
    const { source } = error
    candidates = await candidatesOf(source, options)
    const prefix = words.at(-1) ?? ''
    // The shell's own completion takes over.
    if (source.files && !candidates.some(({ value }) => value.startsWith(prefix))) console.log(':0')
    else root.parse([...words])
  }
}

async function candidatesOf(source: Source, options: GlobalOptions): Promise<Candidate[]> {
  try {
    if (source.values) return source.values().map((value) => ({ value, description: '' }))
    if (!source.list) return []
    const { url, key } = findService(options, process.env)
    const tunery = new Tunery({ baseUrl: url, apiKey: key, maxRetries: 0, timeout_ms })
    return await source.list(tunery)
  } catch {
    return []
  }
}

type Handler = (add: (value: string, description: string) => void) => void

/** Tells the library all commands, options and arguments. */
function register(root: RootCommand, program: Command, handlerOf: (source: Source) => Handler): void {
  const add = (
    target: InstanceType<typeof RootCommand> | ReturnType<RootCommand['command']>,
    command: Command,
    words: string,
  ) => {
    for (let ancestor: Command | null = command; ancestor; ancestor = ancestor.parent)
      for (const { long, short, description, required, optional, hidden } of ancestor
        .createHelp()
        .visibleOptions(ancestor)) {
        if (!long || hidden) continue
        const name = long.slice(2)
        const source = sourceOf(words, long)
        const alias = short?.slice(1)
        if (required || optional) target.option(name, description, source ? handlerOf(source) : () => {}, alias)
        else target.option(name, description, alias)
      }
    for (const argument of command.registeredArguments) {
      const source = sourceOf(words, argument.name())
      target.argument(argument.name(), source && handlerOf(source), argument.variadic)
    }
  }
  add(root, program, '')
  const visit = (command: Command, words: string) => {
    for (const visibleCommand of command.createHelp().visibleCommands(command)) {
      if (visibleCommand.name() === 'help') continue
      const path = `${words} ${visibleCommand.name()}`.trim()
      const target = root.command(path, visibleCommand.description())
      // `eval MODEL` is `eval run MODEL`.
      const meant = visibleCommand.commands.find((inner) => inner.name() === 'run') ?? visibleCommand
      add(target, meant, path)
      visit(visibleCommand, path)
    }
  }
  visit(program, '')
}
