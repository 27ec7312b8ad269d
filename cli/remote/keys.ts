// `keys`: API keys of the account, or of the data folder.
import type { KeysCreateBody } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, type Run, runs } from '../support/options.ts'
import { show, showList } from '../support/output.ts'
import { connect } from '../support/service.ts'
import { time } from '../support/text.ts'
import { all } from './lists.ts'

interface CreateOptions extends GlobalOptions {
  name?: string
  scopes: string
}

/** `createLocally` makes a key in the data folder; a package has none. */
export function addKeyCommands(program: Program, createLocally: (() => Promise<Run>) | undefined): void {
  const keys = program.command('keys').description('API keys')
  runs(
    keys
      .command('create')
      .description(
        createLocally
          ? 'create an API key for the data folder, or with --url, --key or --profile for the account of a ' +
              'service; it is shown once'
          : 'create an API key; it is shown once',
      )
      .option('--name <name>', 'what it is for')
      .option(
        '--scopes <scopes>',
        'full, inference, read_only or operator; of a service also scopes with commas',
        'full',
      ),
    async (options: CreateOptions) => {
      const isRemote = [options.url, options.key, options.profile].some((option) => option !== undefined)
      if (!createLocally || isRemote) return createKey(options)
      await ((await createLocally()) as (options: CreateOptions) => Promise<void>)(options)
    },
  )
  runs(keys.command('list').description('list the keys, newest first'), listKeys)
  runs(
    keys
      .command('revoke')
      .description('revoke a key for ever; requests with it are refused within a second')
      .argument('<key>', 'id of the key'),
    revokeKey,
  )
}

async function createKey(options: CreateOptions): Promise<void> {
  if (!options.name?.trim())
    throw new UsageError(`Give the key a name of at most 200 characters: ${typed('keys create --name NAME')}`)
  const list = options.scopes.split(',').map((scope) => scope.trim())
  // The service says which there are.
  const scopes = (options.scopes.includes(':') || list.length > 1 ? list : options.scopes) as KeysCreateBody['scopes']
  const key = await connect(options).tunery.keys.create({ name: options.name, scopes })
  show(options, key, `${key.key}\n\nThis key is shown once. It may: ${key.scopes.join(', ')}.`)
}

async function listKeys(options: GlobalOptions): Promise<void> {
  const keys = await all(connect(options).tunery.keys.list({ limit: 100 }))
  showList(
    options,
    keys,
    [
      { head: 'id', value: ({ id }) => id },
      { head: 'key', value: ({ prefix }) => `${prefix}…` },
      { head: 'name', value: ({ name }) => name, flexible: true },
      { head: 'scopes', value: ({ scopes }) => (scopes.length > 3 ? `${scopes.length} scopes` : scopes.join(', ')) },
      { head: 'status', value: ({ status }) => status },
      { head: 'last used', value: ({ last_used_at }) => time(last_used_at) || 'never' },
    ],
    { empty: 'There are no keys.' },
  )
}

async function revokeKey(id: string, options: GlobalOptions): Promise<void> {
  const revoked = await connect(options).tunery.keys.revoke(id)
  show(options, revoked, `${id} is revoked.`)
}
