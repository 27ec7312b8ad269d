// What `doctor` looks at on the machine of a checkout.
import { execFile } from 'node:child_process'
import { accessSync, constants, existsSync, readdirSync, readFileSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import net from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { chooseEngine } from '../../lib/engine-choice.ts'
import { readNvidiaGpus } from '../../lib/nvidia-gpus.ts'
import { root } from '../../lib/root.ts'
import { usableCores } from '../../lib/usable-cores.ts'
import { type Config, readConfig } from '../../server/config.ts'
import { type Check, ok, problem, warning } from '../support/checks.ts'
import { runningUrl } from '../support/service.ts'
import { bytes } from '../support/text.ts'

const run = promisify(execFile)
const setup = "Run 'npm run setup' in the checkout."
/** Importing torch takes seconds on a busy machine. */
const python_ms = 60_000
const network_ms = 5000
/** A training of a small model, its checkpoints and its export. */
const comfortableDisk_bytes = 5e9
const comfortableMemory_bytes = 2e9

/** Looks at settings, programs, hardware, disk, port and network, all at once. */
export async function checkMachine(): Promise<Check[]> {
  let config: Config
  try {
    config = readConfig(process.env)
  } catch (error) {
    // The other checks need the settings.
    return [
      checkNode(),
      problem('settings', (error as Error).message, "Correct or unset them; './tunery config' lists all."),
    ]
  }
  const [python, gpu, disk, port, network] = await Promise.all([
    checkPython(),
    checkGpu(),
    checkDisk(config),
    checkPort(config),
    checkNetwork(config),
  ])
  return [
    checkNode(),
    ok('settings', 'every TUNERY_ variable is a setting and valid'),
    checkSetup(),
    ...python,
    checkProcessor(config),
    checkMemory(),
    gpu,
    checkEngine(config),
    ...disk,
    checkBases(config),
    port,
    network,
  ]
}

function checkNode(): Check {
  const [major] = process.versions.node.split('.').map(Number)
  return major! >= 24
    ? ok('Node', process.versions.node)
    : problem('Node', `${process.versions.node} is too old: 24 is needed`, setup)
}

function checkSetup(): Check {
  const missing = ['llama', 'python', 'web'].filter((part) => !existsSync(path.join(root, '.local', part)))
  if (missing.length > 0) return problem('set-up', `${missing.join(', ')} is not installed`, setup)
  return existsSync(path.join(root, '.local/setup-pending.json'))
    ? warning(
        'set-up',
        'what only training needs is not installed yet',
        `The running service installs it. Or: ${setup}`,
      )
    : ok('set-up', 'everything is installed')
}

async function checkPython(): Promise<Check[]> {
  const python = path.join(root, '.local/python/bin/python')
  const script =
    'import json, platform, torch; print(json.dumps({"python": platform.python_version(), "torch": ' +
    'torch.__version__, "cuda": torch.cuda.is_available(), "gpu": torch.cuda.get_device_name() if ' +
    'torch.cuda.is_available() else None}))'
  if (!existsSync(python)) return [problem('Python', 'the trainer has no Python yet', setup)]
  try {
    const { stdout } = await run(python, ['-c', script], { timeout: python_ms })
    const facts = JSON.parse(stdout) as { python: string; torch: string; cuda: boolean; gpu: string | null }
    const torch = facts.cuda
      ? ok('torch', `${facts.torch}, trains on ${facts.gpu}`)
      : nvidiaDevices() > 0
        ? warning(
            'torch',
            `${facts.torch} does not see the GPU`,
            "Update the driver, then run 'TUNERY_GPU=cuda npm run setup'.",
          )
        : ok('torch', `${facts.torch}, trains on the processor`)
    return [ok('Python', facts.python), torch]
  } catch (error) {
    const last = String((error as { stderr?: string }).stderr || (error as Error).message)
      .trim()
      .split('\n')
      .at(-1)
    return [problem('torch', `it cannot be imported: ${last}`, setup)]
  }
}

const nvidiaDevices = () => readdirSync('/dev').filter((name) => /^nvidia\d+$/.test(name)).length

async function checkGpu(): Promise<Check> {
  const gpus = await readNvidiaGpus()
  if (!gpus) return warning('GPU', 'there is one, but nvidia-smi does not answer', 'Install or update its driver.')
  if (gpus.length === 0) return ok('GPU', 'none: models run and train on the processor')
  const size = (figure: number | null) => (figure === null ? 'unknown' : bytes(figure))
  const texts = gpus.map((gpu) => `${gpu.name}, ${size(gpu.total_bytes)}, ${size(gpu.free_bytes)} free`)
  return ok('GPU', texts.join('; '))
}

function checkEngine(config: Config): Check {
  const { vllm, why, problem: missing } = chooseEngine(config)
  if (missing && config.engine === 'vllm') return problem('engine', missing, 'Or set TUNERY_ENGINE=auto.')
  if (missing) return warning('engine', 'our own computes, on a machine with a GPU', missing)
  return ok('engine', `${vllm === null ? 'our own computes' : `vLLM computes (${vllm})`}. ${why}`)
}

function checkProcessor({ threads }: Config): Check {
  const [first] = os.cpus()
  return ok('processor', `${usableCores()} cores (${first?.model.trim() || os.arch()}), ${threads} threads a model`)
}

function checkMemory(): Check {
  const free = availableMemory()
  const message = `${bytes(free)} of ${bytes(os.totalmem())} are free`
  return free >= comfortableMemory_bytes
    ? ok('memory', message)
    : warning('memory', message, 'Small models need about 2 GB to train. End other programs, or use method qlora.')
}

/** What programs can get: Linux gives away its file cache. */
function availableMemory(): number {
  try {
    return 1024 * Number(/^MemAvailable:\s+(\d+)/m.exec(readFileSync('/proc/meminfo', 'utf8'))![1])
  } catch {
    return os.freemem()
  }
}

async function checkDisk({ data_dir, min_free_disk_mb }: Config): Promise<Check[]> {
  let folder = data_dir
  while (!existsSync(folder)) folder = path.dirname(folder)
  try {
    accessSync(folder, constants.W_OK)
  } catch {
    return [
      problem(
        'data folder',
        `${folder} cannot be written`,
        'Give it to this user, or set TUNERY_DATA_DIR to another one.',
      ),
    ]
  }
  const { bavail, bsize } = await statfs(folder)
  const free = bavail * bsize
  const message = `${bytes(free)} are free for ${data_dir}`
  if (free < min_free_disk_mb * 1e6)
    return [problem('disk', message, 'Uploads and jobs are refused. Make room, or lower TUNERY_MIN_FREE_DISK_MB.')]
  return [
    ok('data folder', data_dir),
    free < comfortableDisk_bytes
      ? warning('disk', message, 'Larger models and exports need more: make room.')
      : ok('disk', message),
  ]
}

function checkBases({ models_dir }: Config): Check {
  const bases = existsSync(models_dir)
    ? readdirSync(models_dir, { withFileTypes: true })
        .filter((owner) => owner.isDirectory())
        .flatMap((owner) => readdirSync(path.join(models_dir, owner.name)).map((name) => `${owner.name}/${name}`))
        .filter((id) => existsSync(path.join(models_dir, id, 'model.json')))
    : []
  return bases.length > 0
    ? ok('base models', bases.join(', '))
    : warning(
        'base models',
        `there are none in ${models_dir}`,
        "Run './tunery models add HuggingFaceTB/SmolLM2-135M-Instruct'.",
      )
}

async function checkPort({ host, port }: Config): Promise<Check> {
  const running = runningUrl()
  if (running && (await answers(running))) return ok('service', `it runs at ${running}`)
  if (port === 0) return ok('port', 'a free one is picked at each start')
  const failure = await new Promise<NodeJS.ErrnoException | undefined>((resolve) => {
    const server = net.createServer().once('error', resolve)
    server.listen(port, host, () => server.close(() => resolve(undefined)))
  })
  if (!failure) return ok('port', `${port} on ${host} is free; 'npm start' starts the service`)
  return failure.code === 'EADDRINUSE'
    ? problem('port', `another program uses port ${port} on ${host}`, 'End it, or set TUNERY_PORT to another one.')
    : problem('port', `${host}:${port} cannot be listened on: ${failure.message}`, 'Set TUNERY_HOST and TUNERY_PORT.')
}

const answers = (url: string) =>
  fetch(new URL('/health/live', url), { signal: AbortSignal.timeout(network_ms) }).then(
    ({ ok }) => ok,
    () => false,
  )

async function checkNetwork({ huggingface_url }: Config): Promise<Check> {
  try {
    const response = await fetch(huggingface_url, { method: 'HEAD', signal: AbortSignal.timeout(network_ms) })
    await response.body?.cancel()
    return ok('network', `${huggingface_url} answers`)
  } catch (error) {
    const why = (error as { cause?: Error }).cause?.message || (error as Error).message
    return warning(
      'network',
      `${huggingface_url} cannot be reached: ${why}`,
      "Base models cannot be downloaded. './tunery models add ID --from FOLDER' takes one that you have.",
    )
  }
}
