// `login`, `logout` and `profiles`: where services and keys are stored.
import { type Profile as Account, Tunery } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs } from '../support/options.ts'
import { note, show, showList } from '../support/output.ts'
import { checkProfileName, profilesFile, readProfiles, writeProfiles } from '../support/profiles.ts'
import { ask, askHidden, readAll } from '../support/prompt.ts'
import { checkedKey, normalizeUrl, runningUrl } from '../support/service.ts'
import { oneLine } from '../support/text.ts'

interface LoginOptions extends GlobalOptions {
  keyStdin?: boolean
}

export function addLoginCommands(program: Program): void {
  runs(
    program
      .command('login')
      .description('store the address of a service and a key as a profile, for all further commands')
      .argument(
        '[address]',
        'such as https://tunery.example.com/v1; default: --url, the service on the data folder, or asked',
      )
      .option('--key-stdin', 'read the key from stdin instead of the terminal'),
    login,
  )
  runs(
    program
      .command('logout')
      .description('forget a profile; the key stays valid until it is revoked')
      .argument('[name]', 'default: --profile, or the current one'),
    logout,
  )
  const profiles = program.command('profiles').description('services that login has stored')
  runs(profiles.command('list').description('list the profiles'), listProfiles)
  runs(
    profiles.command('use').description('let further commands use a profile').argument('<name>', 'name of the profile'),
    useProfile,
  )
}

async function login(address: string | undefined, options: LoginOptions): Promise<void> {
  const here = runningUrl()
  const target = address ?? options.url ?? process.env.TUNERY_URL ?? (options.keyStdin ? here : undefined)
  const url = normalizeUrl(
    target || (await ask(`Address of the service${here ? ` [${here}]` : ''}: `)) || here || 'http://127.0.0.1:8000/v1',
  )
  const name = checkProfileName(
    options.profile ?? (url === here ? 'local' : new URL(url).hostname.replace(/[^\w.-]/g, '-')),
  )
  const key = checkedKey(
    options.keyStdin ? await readAll() : (options.key ?? (await askHidden('API key (it is not shown): '))),
  )
  const account = await new Tunery({ baseUrl: url, apiKey: key }).user.profile()
  const stored = readProfiles()
  writeProfiles({ current: name, profiles: { ...stored.profiles, [name]: { url, key } } })
  show(options, { profile: name, url, ...withoutLimits(account) }, () =>
    [
      `You are ${oneLine(account.name)} (${account.role}) of ${oneLine(account.account.name)} at ${url}.`,
      `Profile '${name}' is stored in ${profilesFile()} and is used from now on.`,
    ].join('\n'),
  )
}

const withoutLimits = ({ name, email, role, account, tier, key }: Account) => ({
  name,
  email,
  role,
  account,
  tier: tier.id,
  key: key && { id: key.id, name: key.name, scopes: key.scopes },
})

function logout(name: string | undefined, options: GlobalOptions): void {
  const { current, profiles } = readProfiles()
  const gone = name ?? options.profile ?? current
  if (gone === undefined || !Object.hasOwn(profiles, gone))
    throw new UsageError(
      gone === undefined
        ? 'No profile is in use.'
        : `There is no profile '${gone}'. '${typed('profiles')}' lists them.`,
    )
  const { [gone]: _, ...rest } = profiles
  writeProfiles({ current: current === gone ? undefined : current, profiles: rest })
  show(
    options,
    { profile: gone, deleted: true },
    `Profile '${gone}' is forgotten. '${typed('keys revoke')}' ends its key.`,
  )
}

function listProfiles(options: GlobalOptions): void {
  const { current, profiles } = readProfiles()
  const rows = Object.entries(profiles).map(([name, { url }]) => ({ name, url, current: name === current }))
  showList(
    options,
    rows,
    [
      { head: '', value: (row) => (row.current ? '*' : '') },
      { head: 'name', value: ({ name }) => name },
      { head: 'service', value: ({ url }) => url },
    ],
    { empty: `There are no profiles. '${typed('login')}' makes one.` },
  )
  const set = ['TUNERY_URL', 'TUNERY_KEY', 'TUNERY_PROFILE'].filter((variable) => process.env[variable])
  if (set.length > 0 && !options.json) note(`${set.join(', ')} of the environment is used before the current profile.`)
}

function useProfile(name: string, options: GlobalOptions): void {
  const { profiles } = readProfiles()
  if (!Object.hasOwn(profiles, name))
    throw new UsageError(`There is no profile '${name}'. '${typed('profiles')}' lists them.`)
  writeProfiles({ current: name, profiles })
  show(options, { profile: name }, `Profile '${name}' (${profiles[name]!.url}) is used from now on.`)
}
