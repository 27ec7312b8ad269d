// docs/reference/cli.md: every command, from the program itself.
import type { Argument, Command, Option } from 'commander'
import { local } from '../../cli/local/loaders.ts'
import { createProgram } from '../../cli/program.ts'

const introduction = `# Command line

\`./tunery COMMAND\` in a checkout. Without one, \`npx tunery COMMAND\` has the commands that talk to a service. How \
to begin:
[the guide](../guides/command-line.md).

## Which service

The first of these that is given:

1. \`--url\` and \`--key\`; \`--profile\`
2. \`TUNERY_URL\` and \`TUNERY_KEY\`
3. \`TUNERY_PROFILE\`, or the profile that \`login\` or \`profiles use\` made the current one. They are in
   \`~/.config/tunery/profiles.json\` (\`XDG_CONFIG_HOME\`), which only you can read
4. the profile \`local\`

An address without a key takes the key of the profile with that address. A key without an address, and without a profile
that is named, belongs to the service that runs on the data folder (\`TUNERY_DATA_DIR\`). The key of a profile is \
sent to
the address of that profile alone; that of \`local\` to the service on the data folder, which may have another port now.

## Exit status

| status | |
|---|---|
| 0 | done |
| 1 | failed: a job without a result, rows that are wrong, damaged files, something that \`doctor\` found, a fault of \
the service |
| 2 | wrong usage, wrong settings, or a request that the service refused. \`export\`, \`import\` and \`bundle\` end \
with 2 for everything that they can explain; work on the data folder too |
| 3 | not authorized: a wrong key, or one without the scope |
| 4 | not found |
| 5 | the service cannot be reached |
| 130 | interrupted by Ctrl-C. What runs on the service continues; the message says how to come back |

## JSON

With \`--json\` stdout has one JSON value and nothing else. \`train\`, \`jobs follow\` and \`webhooks listen\` print \
a line of
JSON for each event; the last line of a job is the job. What people read goes to stderr. Colours and drawings are for
terminals alone, and \`NO_COLOR\` turns colours off.
`

/** The page. Throws an Error if a command, an argument or an option has no description. */
export function cliPage(generatedNote: string): string {
  const program = createProgram(local)
  const sections = visible(program).flatMap((command) => sectionsOf(command, `./tunery ${command.name()}`))
  return `${generatedNote}${introduction}
## Options of all commands

${optionTable(visibleOptions(program))}

## Commands

${sections.join('\n\n')}
`
}

const visible = (command: Command) =>
  command
    .createHelp()
    .visibleCommands(command)
    .filter((each) => each.name() !== 'help')

const visibleOptions = (command: Command) =>
  command
    .createHelp()
    .visibleOptions(command)
    .filter(({ long }) => long !== '--help' && long !== '--version')

function sectionsOf(command: Command, words: string): string[] {
  const inner = visible(command)
  if (!command.description()) throw new Error(`No description: ${words}.`)
  if (inner.length > 0)
    return [
      `### \`${words}\`\n\n${sentence(command.description())}`,
      ...inner.flatMap((each) => sectionsOf(each, `${words} ${each.name()}`)),
    ]
  const options = visibleOptions(command)
  const usage = [words, ...command.registeredArguments.map(argumentOf), ...(options.length > 0 ? ['[options]'] : [])]
  const rows = [
    ...command.registeredArguments.map((argument) => row(argumentOf(argument), argument.description, words)),
    ...options.map((option) => optionRow(option, words)),
  ]
  return [
    `#### \`${usage.join(' ')}\`\n\n${sentence(command.description())}${rows.length > 0 ? `\n\n${tableOf(rows)}` : ''}`,
  ]
}

const sentence = (text: string) => `${text[0]!.toUpperCase()}${text.slice(1)}.`

function argumentOf(argument: Argument): string {
  const name = `${argument.name()}${argument.variadic ? '…' : ''}`
  return argument.required ? `<${name}>` : `[${name}]`
}

const tableOf = (rows: string[]) => ['| | |', '|---|---|', ...rows].join('\n')
const optionTable = (options: readonly Option[]) => tableOf(options.map((option) => optionRow(option, './tunery')))

function optionRow({ flags, description, defaultValue, negate }: Option, words: string): string {
  const shown = defaultValue === undefined || defaultValue === false || negate ? '' : ` Default: \`${defaultValue}\`.`
  return row(flags, description, words, shown)
}

function row(name: string, description: string, words: string, more = ''): string {
  if (!description) throw new Error(`No description: ${name} of ${words}.`)
  const text = `${description}${more ? `.${more}` : ''}`
  return `| \`${name.replaceAll('|', '\\|')}\` | ${text.replaceAll('|', '\\|')} |`
}
