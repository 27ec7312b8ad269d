import { parseArgs } from 'node:util'
import { ApiError } from '../contract/errors.ts'
import { ConfigError, describeConfig, readConfig } from '../server/config.ts'
import { NewerDatabase } from '../server/db/migrate.ts'
import { BackupError } from '../server/storage/backup/manifest.ts'
import { storageError } from '../server/storage/durable-files.ts'
import { accounts } from './accounts.ts'
import { backup, check, restore } from './backup.ts'
import { bundle } from './bundle.ts'
import { exportModel } from './export.ts'
import { importOpenai } from './import-openai.ts'
import { importOpenaiEvals } from './import-openai-evals.ts'
import { keys } from './keys.ts'
import { models } from './models.ts'
import { UsageError } from './usage.ts'

const usage = `Usage: ./tunery COMMAND

  keys create --name NAME [--scopes full|inference|read_only|operator] [--json]
                        create an API key for the data folder; it is shown once
  accounts list [--json]
  accounts create --name NAME [--tier TIER] [--email OWNER] [--json]
                        create an account with its owner and their first key, which is shown once
  accounts set ID [--name NAME] [--tier TIER]
  accounts suspend ID | accounts reinstate ID
  models add ID [--from FOLDER]
                        add a base model: from Hugging Face, or from a checkpoint folder (safetensors)
  export MODEL --format gguf|huggingface|onnx [--quantization Q4_K_M] [--adapter-only] [--archive tar|zip]
                        [--push-to OWNER/NAME] [-o FILE]
                        export a model of the account, check it and download it; TUNERY_API_KEY is the account's key
  export EXPORT [-o FILE]
                        resume an export
  import openai JOB.json --model BASE --training FILE [--validation FILE] [--dry-run] [--json]
                        start the training of a job of OpenAI's API here, and say what differs
  import openai-evals FILE.json... [--judge MODEL] [--model MODEL] [--dry-run] [--json]
                        make evals of OpenAI's API here, grade the answers of their runs again, and let MODEL answer
  bundle MODEL -o FOLDER [--quantization Q4_K_M] [--gguf FILE] [--name NAME] [--adapter NAME=FILE.gguf]...
                        [--gpu cuda]
                        write a folder that serves one model by itself, with or without Docker; MODEL is exported
                        first, unless --gguf names its file
  check [--json]        check the database and its files; exit status 1 if anything is missing or damaged
  backup FOLDER         back up the database and its files into a new folder; safe while the service runs
  restore FOLDER        restore a backup into an empty data folder
  config [--json]       list every setting with its value; with --json also its default

Settings come from the environment: TUNERY_DATA_DIR, TUNERY_PORT, …; './tunery config' lists them.`

async function main(args: string[]): Promise<void> {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      name: { type: 'string' },
      scopes: { type: 'string', default: 'full' },
      from: { type: 'string' },
      tier: { type: 'string' },
      email: { type: 'string' },
      format: { type: 'string' },
      quantization: { type: 'string' },
      output: { type: 'string', short: 'o' },
      archive: { type: 'string' },
      'push-to': { type: 'string' },
      'adapter-only': { type: 'boolean', default: false },
      gguf: { type: 'string' },
      model: { type: 'string' },
      judge: { type: 'string' },
      training: { type: 'string' },
      validation: { type: 'string' },
      'dry-run': { type: 'boolean', default: false },
      adapter: { type: 'string', multiple: true },
      gpu: { type: 'string' },
      json: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h', default: false },
    },
  })
  if (values.help || positionals.length === 0) return console.log(usage)
  const [command, action, ...rest] = positionals
  if (command === 'config' && !action) return config(values.json)
  if (command === 'check' && !action) return check(values.json)
  if (command === 'backup' && action && rest.length === 0) return backup(action)
  if (command === 'restore' && action && rest.length === 0) return restore(action)
  if (command === 'keys' && action === 'create' && rest.length === 0) return keys(values)
  if (command === 'accounts' && action && rest.length <= 1) return accounts(action, rest[0], values)
  if (command === 'export' && action && rest.length === 0) return exportModel(action, values)
  if (command === 'import' && action === 'openai' && rest.length === 1) return importOpenai(rest[0]!, values)
  if (command === 'import' && action === 'openai-evals') return importOpenaiEvals(rest, values)
  if (command === 'models' && action === 'add' && rest.length === 1) return models(rest[0]!, values.from)
  if (command === 'bundle' && action && rest.length === 0) return bundle(action, values)
  throw new UsageError(`'${positionals.join(' ')}' is not a command.\n\n${usage}`)
}

main(process.argv.slice(2)).catch((error: unknown) => {
  const known =
    error instanceof UsageError ||
    error instanceof ConfigError ||
    error instanceof ApiError ||
    error instanceof BackupError ||
    error instanceof NewerDatabase ||
    storageError(error) ||
    String((error as { code?: string }).code).startsWith('ERR_PARSE_ARGS')
  console.error(known ? (error as Error).message : ((error as Error).stack ?? error))
  process.exit(known ? 2 : 1)
})

/** Lists every setting with its current value. */
export function config(json: boolean): void {
  const settings = describeConfig(readConfig(process.env))
  if (json) console.log(JSON.stringify(settings, null, 2))
  else for (const { name, value, about } of settings) console.log(`${`${name}=${value ?? ''}`.padEnd(52)} ${about}`)
}
