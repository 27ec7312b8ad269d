// The commands on the data folder of a checkout. What they run is loaded when it is needed, and is no part of the
// package.
import { Option } from 'commander'
import type { Check } from '../support/checks.ts'
import { UsageError } from '../support/errors.ts'
import { type Program, type Run, runs, wordsOf } from '../support/options.ts'

/** Loads what a command runs, by a name for each. */
export interface LocalCommands extends Record<LocalCommand, () => Promise<Run>> {
  /** Looks at the machine, for `doctor`. */
  checkMachine: () => Promise<() => Promise<Check[]>>
}
type LocalCommand =
  | 'createKey'
  | 'createAccount'
  | 'listAccounts'
  | 'changeAccount'
  | 'signInLink'
  | 'addModel'
  | 'bundle'
  | 'check'
  | 'backup'
  | 'restore'
  | 'migrateData'
  | 'config'

/** Lets a command run what `local` has for it. Without a checkout it says that it needs one. */
function runsLocally(command: Program, local: LocalCommands | undefined, name: LocalCommand): void {
  runs(
    command,
    local
      ? local[name]
      : () => {
          throw new UsageError(
            `'tunery ${wordsOf(command)}' needs a checkout of Tunery: it works on the data folder of a service.`,
          )
        },
    { lazy: true },
  )
}

/** `models`: the group that `models add` belongs to. */
export function addLocalCommands(program: Program, models: Program, local: LocalCommands | undefined): void {
  runsLocally(
    models
      .command('add')
      .description(
        'add a base model to the machine: from Hugging Face, a checkpoint folder (safetensors), a GGUF file or Ollama',
      )
      .argument('<id>', 'OWNER/NAME')
      .option('--from <source>', 'the checkpoint folder, the GGUF file, or ollama:NAME')
      .addOption(
        new Option(
          '--weights <form>',
          'fastest: answers come from an eight-bit form where that is faster; original: from the weights as they are',
        ).choices(['fastest', 'original']),
      ),
    local,
    'addModel',
  )
  const accounts = program.command('accounts').description('accounts in the data folder, for operators')
  runsLocally(
    accounts
      .command('create')
      .description('create an account with its owner and their first key, which is shown once')
      .option('--name <name>', 'name of the account and its owner')
      .option('--tier <tier>', 'one of the tiers; default: the default tier')
      .option('--email <address>', "the owner's address"),
    local,
    'createAccount',
  )
  runsLocally(accounts.command('list').description('list all accounts'), local, 'listAccounts')
  for (const [name, description] of [
    ['set', 'rename an account, or give it another tier'],
    ['suspend', 'refuse the requests of an account, within a second'],
    ['reinstate', 'end a suspension'],
  ] as const) {
    const command = accounts.command(name).description(description).argument('<account>', 'id of the account')
    if (name === 'set') command.option('--name <name>', 'another name').option('--tier <tier>', 'another tier')
    runsLocally(command, local, 'changeAccount')
  }
  runsLocally(
    program
      .command('sign-in-link')
      .description('make a link that signs in to the dashboard once: for the operator, or the member with an email')
      .option('--email <address>', 'the member to sign in')
      .option('--account <account>', 'id of the account, if members of several have the email'),
    local,
    'signInLink',
  )
  runsLocally(
    program
      .command('bundle')
      .description(
        'write a folder that serves one model by itself, with or without Docker; the model is exported first, unless ' +
          '--gguf names its file',
      )
      .argument('<model>', 'a model or deployment, an export (exp_…), or a GGUF file')
      .option('-o, --output <folder>', 'the folder, which is made')
      .option('--quantization <type>', 'of the exported file, such as Q4_K_M')
      .option('--gguf <file>', 'the file of the model')
      .option('--name <name>', 'what requests call the model')
      .option('--projector <file>', 'with --gguf: the projector (mmproj) of a model that reads pictures')
      .option('--adapter <name=file>', 'an adapter (GGUF) to serve beside it; may be repeated', collect)
      .option('--gpu <kind>', 'none or cuda')
      .option('--chart', 'write a Helm chart too, in its folder chart'),
    local,
    'bundle',
  )
  runsLocally(
    program.command('check').description('check the database and its files; exit status 1 if anything is damaged'),
    local,
    'check',
  )
  runsLocally(
    program
      .command('backup')
      .description('back up the database and its files; safe while the service runs')
      .argument('<folder>', 'a new folder'),
    local,
    'backup',
  )
  runsLocally(
    program
      .command('restore')
      .description('restore a backup into an empty data folder')
      .argument('<folder>', 'the folder of the backup'),
    local,
    'restore',
  )
  runsLocally(
    program
      .command('migrate-data')
      .description('move the data of a stopped service to another database and storage, verified; resumes after a kill')
      .option('--to-database <url>', 'an empty Postgres database: postgres://user:password@host/database')
      .option('--to-storage <url>', 'an empty storage: s3://bucket/prefix?endpoint=…&region=… or file:///folder')
      .option('--to-data-dir <folder>', 'a new data folder, for SQLite and all files')
      .option('--lost-server <id>', 'a killed server whose data folder is lost; may be repeated', collect),
    local,
    'migrateData',
  )
  runsLocally(
    program.command('config').description('list every setting with its value; with --json also its default'),
    local,
    'config',
  )
}

const collect = (value: string, all: string[] = []) => [...all, value]
