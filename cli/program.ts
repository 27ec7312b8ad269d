// All commands. The reference page and the shell completion are made of this program too.
import { addLocalCommands, type LocalCommands } from './local/commands.ts'
import { addChatCommand } from './remote/chat.ts'
import { addDatasetCommands } from './remote/datasets.ts'
import { addDeploymentCommands } from './remote/deployments.ts'
import { addDoctorCommand } from './remote/doctor.ts'
import { addEvaluationCommands } from './remote/evaluations.ts'
import { addExportCommands } from './remote/export-commands.ts'
import { addJobCommands } from './remote/jobs.ts'
import { addKeyCommands } from './remote/keys.ts'
import { addLoginCommands } from './remote/login.ts'
import { addMcpCommand } from './remote/mcp.ts'
import { addMemberCommands } from './remote/members.ts'
import { addModelCommands } from './remote/models.ts'
import { addTrainCommand } from './remote/train.ts'
import { addUsageCommand } from './remote/usage.ts'
import { addWebhookCommands } from './remote/webhooks.ts'
import { invocation } from './support/invocation.ts'
import { type GlobalOptions, Program, runs } from './support/options.ts'

const environment = `Which service: --url and --key, --profile, TUNERY_URL and TUNERY_KEY, TUNERY_PROFILE, the current
profile of 'login', or the service that runs on the data folder. Exit status: 0 done, 1 failed, 2 wrong usage,
3 not authorized, 4 not found, 5 not reachable, 130 interrupted.`

/** The program. Without `local` the commands on the data folder say that they need a checkout. */
export function createProgram(local: LocalCommands | undefined): Program {
  const { name, version } = invocation()
  const program = new Program(name)
  program
    .description('Upload examples, fine-tune an open model, serve it by name, own the weights.')
    .version(version, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print what a command does and takes')
    .option('--json', 'print one JSON value (streams: a line for each event) and nothing else')
    .option('--url <address>', 'the service, with its version: https://tunery.example.com/v1')
    .option('--key <key>', 'an API key; others on this machine may see it there: prefer TUNERY_KEY or login')
    .option('--profile <name>', 'a service and a key that login has stored')
    .configureHelp({ showGlobalOptions: true })
    .exitOverride()
    .addHelpText('after', `\n${environment}`)
  addLoginCommands(program)
  const models = addModelCommands(program)
  addDatasetCommands(program)
  addTrainCommand(program)
  addJobCommands(program)
  addEvaluationCommands(program)
  addDeploymentCommands(program)
  addExportCommands(program)
  addChatCommand(program)
  addUsageCommand(program)
  addMcpCommand(program)
  addWebhookCommands(program)
  addKeyCommands(program, local?.createKey)
  addMemberCommands(program)
  addLocalCommands(program, models, local)
  addDoctorCommand(program, local?.checkMachine)
  addCompletionCommands(program)
  return program
}

function addCompletionCommands(program: Program): void {
  const load = () => import('./completion.ts')
  runs(
    program
      .command('completion')
      .description('print a script that completes commands, options and ids in a shell')
      .argument('<shell>', 'bash, zsh or fish'),
    async (shell: string) => (await load()).printScript(shell),
  )
  // What the script asks.
  runs(
    program.command('complete', { hidden: true }).argument('[words...]'),
    async (words: string[], options: GlobalOptions) => (await load()).complete(program, words, options),
  )
}

/** A group that is named alone lists: `jobs` is `jobs list`. */
export function withDefaults(program: Program, args: string[]): string[] {
  const { operands } = program.parseOptions(args)
  const [group] = operands
  const command = operands.length === 1 ? program.commands.find((candidate) => candidate.name() === group) : undefined
  if (
    !command?.commands.some((subcommand) => subcommand.name() === 'list') ||
    args.some((arg) => /^(-h|--help)$/.test(arg))
  )
    return args
  return args.toSpliced(args.indexOf(group!) + 1, 0, 'list')
}
