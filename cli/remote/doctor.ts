// `doctor`: does everything work, and what to do if not.
import { isTuneryError, Tunery } from '../../sdk/index.ts'
import { type Check, ok, problem, warning } from '../support/checks.ts'
import { CommandError, UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs } from '../support/options.ts'
import { show } from '../support/output.ts'
import { findService, type Service } from '../support/service.ts'
import { clean, pad, paint, sign } from '../support/text.ts'

const timeout_ms = 10_000

/** `checkMachine` looks at the machine of a checkout; a package has none. */
export function addDoctorCommand(
  program: Program,
  checkMachine: (() => Promise<() => Promise<Check[]>>) | undefined,
): void {
  runs(
    program
      .command('doctor')
      .description(
        checkMachine
          ? 'look at programs, hardware, disk, port, network and service, and say what to do; exit status 1 if ' +
              'something does not work'
          : 'look at the service and the key, and say what to do; exit status 1 if something does not work',
      ),
    async (options: GlobalOptions) => {
      const machine = checkMachine ? await (await checkMachine())() : [checkNode()]
      const checks = [...machine, ...(await checkService(options))]
      const problems = checks.filter(({ status }) => status === 'problem').length
      show(options, { ok: problems === 0, checks }, () => describe(checks))
      if (problems > 0) throw new CommandError('')
    },
  )
}

const checkNode = () => ok('Node', process.versions.node)

async function checkService(options: GlobalOptions): Promise<Check[]> {
  let service: Service
  try {
    service = findService(options, process.env)
  } catch (error) {
    if (!(error instanceof UsageError)) throw error
    return [warning('key', 'no service and key are known', error.message)]
  }
  const tunery = new Tunery({ baseUrl: service.url, apiKey: service.key, maxRetries: 0, timeout_ms })
  const where = `${service.url}${service.profile ? ` (profile '${service.profile}')` : ''}`
  const start = performance.now()
  try {
    const { name, role, account, key } = await tunery.user.profile()
    const took_ms = Math.round(performance.now() - start)
    const scopes = key ? `, the key '${key.name}' has ${key.scopes.length} scopes` : ''
    return [
      ok('connection', `${where} answers in ${took_ms} ms`),
      ok('key', `${name} (${role}) of ${account.name}${scopes}`),
      ...(await checkTraining(tunery)),
    ]
  } catch (error) {
    if (isTuneryError(error) && (error.status === 401 || error.status === 403))
      return [
        ok('connection', `${where} answers`),
        problem('key', error.message, `'${typed('login')}' stores another key.`),
      ]
    return [
      problem(
        'connection',
        `${where}: ${(error as Error).message}`,
        'Is the service running, is the address right (https://…/v1), and does a proxy or a firewall stand between?',
      ),
    ]
  }
}

async function checkTraining(tunery: Tunery): Promise<Check[]> {
  try {
    const { ready, steps } = await tunery.hub.setup.get()
    if (ready) return [ok('training', 'the service can train')]
    const failed = steps.find(({ status }) => status === 'failed')
    return failed
      ? [
          problem(
            'training',
            `set-up failed at ${failed.title}: ${failed.message ?? ''}`,
            "Run 'npm run setup' on its machine.",
          ),
        ]
      : [
          warning(
            'training',
            'the service is still installing what training needs',
            'Jobs wait for it. Try again in a minute.',
          ),
        ]
  } catch (error) {
    // An older service, or a key without the scope.
    if (isTuneryError(error)) return []
    throw error
  }
}

function describe(checks: Check[]): string {
  const width = Math.max(...checks.map(({ name }) => name.length))
  return checks
    .flatMap(({ name, status, message, todo }) => [
      `${sign(status)} ${pad(name, width)}  ${clean(message)}`,
      ...(todo ? [`  ${' '.repeat(width)}  ${paint('dim', clean(todo))}`] : []),
    ])
    .join('\n')
}
