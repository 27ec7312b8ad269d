// What once deleted data, or kept a service from starting: a wrong volume, a database that is missing, empty or
// foreign, a restore that failed, a kill on a full disk, a secret key that was lost or cut.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { root } from '../../lib/root.ts'
import { client, colourRows, until } from '../support/client.ts'
import { type DataFolder, dataFolder, ended } from '../support/server.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

/** A data folder with datasets and files, whose service has stopped; every file is two days old. */
async function filledFolder(name: string, settings: Record<string, string> = {}): Promise<DataFolder> {
  const folder = dataFolder(name, settings)
  const server = await folder.start()
  const { upload, api } = client(server.url, folder.key())
  for (let count = 0; count < 3; count++) assert.equal((await upload(colourRows(8 + count))).status, 201)
  const form = new FormData()
  form.set('purpose', 'user_data')
  form.set('file', new Blob(['notes']), 'notes.txt')
  assert.equal((await api('POST', '/files', form)).status, 200)
  // Else a later start continues with them, and writes.
  await until('all to be prepared', async () => {
    const { items } = (await api('GET', '/datasets/')).body as { items: { status: string }[] }
    return items.every(({ status }) => status !== 'preparing')
  })
  await server.end('SIGTERM')
  spawnSync('find', [folder.dataDir, '-exec', 'touch', '-d', '2 days ago', '{}', '+'])
  return folder
}

const kept = ['datasets', 'files', 'models', 'exports', 'drafts', 'runs', 'uploads', 'batches']
/** All files that rows may name, with their sizes. */
const filesOf = (dataDir: string) =>
  kept.flatMap((folder) =>
    existsSync(path.join(dataDir, folder))
      ? readdirSync(path.join(dataDir, folder), { recursive: true })
          .map((name) => path.join(folder, String(name)))
          .map((name) => `${name} ${statSync(path.join(dataDir, name)).size}`)
      : [],
  )

/** Starts the service, which must refuse: the sentence on its standard error. */
function refusal(folder: DataFolder, settings: Record<string, string> = {}): string {
  const env = { ...folder.env, ...settings }
  const { status, stderr } = spawnSync(process.execPath, ['server/main.ts'], {
    cwd: root,
    env,
    encoding: 'utf8',
    timeout: 60_000,
  })
  assert.equal(status, 1, `the service must refuse to start: ${stderr}`)
  assert.doesNotMatch(stderr, /\n\s+at /, 'a sentence, not a stack')
  return stderr
}

const removeDatabase = (dataDir: string) => {
  for (const name of readdirSync(dataDir)) if (/^tunery\.db/.test(name)) rmSync(path.join(dataDir, name))
}

describe('a data folder and a database that do not belong together', () => {
  let own: DataFolder
  let other: DataFolder
  let files: string[]
  before(async () => {
    own = await filledFolder('own')
    other = await filledFolder('other')
    files = filesOf(own.dataDir)
    assert.ok(files.length >= 4)
  })
  after(() => {
    own.remove()
    other.remove()
  })

  const databases: Record<string, (dataDir: string) => void> = {
    'is missing': () => {},
    'is empty': (dataDir) => writeFileSync(path.join(dataDir, 'tunery.db'), ''),
    'is that of another installation': (dataDir) =>
      cpSync(path.join(other.dataDir, 'tunery.db'), path.join(dataDir, 'tunery.db')),
  }
  for (const [what, make] of Object.entries(databases))
    test(`a start whose database ${what} deletes nothing, makes nothing, and says what to do`, async () => {
      const aside = `${own.dataDir}-aside`
      cpSync(own.dataDir, aside, { recursive: true })
      try {
        removeDatabase(own.dataDir)
        make(own.dataDir)
        const before = readdirSync(own.dataDir).filter((name) => !/^(tunery\.db-|server\.lock)/.test(name))
        const said = refusal(own)
        assert.match(said, new RegExp(own.dataDir))
        assert.match(said, /TUNERY_DATA_DIR|restore/)
        assert.deepEqual(filesOf(own.dataDir), files)
        const now = readdirSync(own.dataDir).filter((name) => !/^(tunery\.db-|server\.lock)/.test(name))
        assert.deepEqual(now, before)
        // Neither does the command line begin another installation there.
        const { status, stderr } = spawnSync(path.join(root, 'tunery'), ['keys', 'create', '--name', 'x'], {
          env: own.env,
          encoding: 'utf8',
        })
        assert.notEqual(status, 0)
        assert.match(stderr, new RegExp(own.dataDir))
        assert.deepEqual(filesOf(own.dataDir), files)
      } finally {
        rmSync(own.dataDir, { recursive: true })
        renameSync(aside, own.dataDir)
      }
    })

  test('a restore that broke off leaves a folder that is not taken for a new installation', () => {
    const target = dataFolder('restored')
    try {
      // Files are moved first and the database last: a kill in between.
      cpSync(path.join(own.dataDir, 'datasets'), path.join(target.dataDir, 'datasets'), { recursive: true })
      const files = filesOf(target.dataDir)
      assert.match(refusal(target), /tunery\.db is missing/)
      assert.deepEqual(filesOf(target.dataDir), files)
    } finally {
      target.remove()
    }
  })

  test('a database that comes without its files, as on a volume that is not mounted, is refused', () => {
    const target = dataFolder('unmounted')
    try {
      cpSync(path.join(own.dataDir, 'tunery.db'), path.join(target.dataDir, 'tunery.db'))
      assert.match(refusal(target), /none of them/)
    } finally {
      target.remove()
    }
  })

  test('a shared folder of another installation is refused, and loses nothing', async () => {
    const shared = `${other.dataDir}-shared`
    mkdirSync(shared)
    const storage = { TUNERY_STORAGE_URL: `file://${shared}` }
    const [first, second] = [await filledFolder('first', storage), dataFolder('second', storage)]
    const objects = readdirSync(shared, { recursive: true })
    try {
      assert.match(refusal(second), /belongs to the installation [0-9a-f]{12}/)
      assert.deepEqual(readdirSync(shared, { recursive: true }), objects)
    } finally {
      first.remove()
      second.remove()
      rmSync(shared, { recursive: true })
    }
  })

  test('an older database of the same installation sets newer files aside, and deletes none', async () => {
    const older = `${own.dataDir}-older.db`
    cpSync(path.join(own.dataDir, 'tunery.db'), older)
    const server = await own.start()
    const { upload } = client(server.url, own.key())
    const { id } = (await upload(colourRows(12))).body
    await server.end('SIGTERM')
    spawnSync('find', [path.join(own.dataDir, 'datasets'), '-exec', 'touch', '-d', '2 days ago', '{}', '+'])
    const after = filesOf(own.dataDir)
    const newer = after.filter((file) => file.includes(id))
    removeDatabase(own.dataDir)
    cpSync(older, path.join(own.dataDir, 'tunery.db'))
    const again = await own.start()
    await again.end('SIGTERM')
    assert.deepEqual(
      filesOf(own.dataDir),
      after.filter((file) => !newer.includes(file)),
    )
    const aside = readdirSync(path.join(own.dataDir, 'orphans'), { recursive: true }).map(String)
    assert.ok(
      aside.some((name) => name.endsWith(`datasets/${id}.jsonl`)),
      aside.join(),
    )
    rmSync(older)
  })
})

describe('the key of the secrets', () => {
  let folder: DataFolder
  let key: string
  before(async () => {
    folder = await filledFolder('keyless')
    key = path.join(folder.dataDir, 'secret.key')
    const server = await folder.start()
    const { api } = client(server.url, folder.key())
    const webhook = { url: 'https://example.com/', events: ['training.completed'] }
    assert.equal((await api('POST', '/webhooks', webhook)).status, 201)
    await server.end('SIGTERM')
  })
  after(() => folder.remove())

  test('a start without it, or with a cut or empty one, is refused while rows need it', () => {
    const whole = readFileSync(key)
    for (const left of [undefined, 16, 0]) {
      if (left === undefined) rmSync(key)
      else writeFileSync(key, whole.subarray(0, left))
      const said = refusal(folder)
      assert.match(said, left === undefined ? /secret\.key is missing/ : new RegExp(`damaged: it has ${left} bytes`))
      assert.match(said, /TUNERY_SECRET_KEY_FILE/)
      assert.equal(existsSync(key) ? readFileSync(key).length : undefined, left, 'no other key was made')
    }
    writeFileSync(key, whole)
  })
})

const unshare = process.getuid?.() === 0 ? ['-m'] : ['-Urm']
const canMount = spawnSync('unshare', [...unshare, 'sh', '-c', 'mount -t tmpfs tmpfs /mnt']).status === 0

describe('a service that was killed on a full disk', {
  skip: !canMount && 'this machine does not allow mounting a filesystem',
}, () => {
  const mount = mkdtempSync(path.join(os.tmpdir(), 'tunery-full-'))
  let holder: ChildProcess
  let server: ChildProcess | undefined
  let data: string
  before(async () => {
    const script = 'mount -t tmpfs -o size=48m tmpfs "$1" && touch "$1/mounted" && exec sleep 3600'
    holder = spawn('unshare', [...unshare, 'sh', '-c', script, 'sh', mount], { stdio: 'ignore' })
    data = `/proc/${holder.pid}/root${mount}`
    await until('the small disk', () => existsSync(path.join(data, 'mounted')))
  })
  after(async () => {
    server?.kill('SIGKILL')
    holder.kill('SIGKILL')
    await ended(holder)
    rmSync(mount, { recursive: true, force: true })
  })

  /** Starts the service in the namespace of the small disk; resolves with its address when it serves. */
  async function start(): Promise<string> {
    const env = {
      ...process.env,
      TUNERY_DATA_DIR: mount,
      TUNERY_MODELS_DIR: tinyModelsDir(),
      TUNERY_PORT: '0',
      TUNERY_THREADS: '1',
      TUNERY_LOG_LEVEL: 'silent',
      TUNERY_MIN_FREE_DISK_MB: '0',
      TUNERY_PREPARED_TRAINER_SECONDS: '0',
    }
    const into = ['-t', String(holder.pid), ...(process.getuid?.() === 0 ? ['-m'] : ['-U', '-m']), '--wd=.']
    const child = spawn('nsenter', [...into, process.execPath, 'server/main.ts'], { cwd: root, env })
    server = child
    let said = ''
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => (said += text))
    return await until('the service to serve', () => {
      if (child.exitCode !== null) throw new Error(`it ended with ${child.exitCode}: ${said}`)
      return /Tunery serves (\S+)/.exec(said)?.[1]
    })
  }
  let fillers = 0
  /** Takes every free byte. */
  const fill = () => {
    for (const block of ['64k', '4k'])
      spawnSync('dd', ['if=/dev/zero', `of=${path.join(data, `filler${fillers++}`)}`, `bs=${block}`])
    assert.equal(spawnSync('stat', ['-f', '-c', '%a', data], { encoding: 'utf8' }).stdout.trim(), '0')
  }

  test(
    'starts again from its reserve, reads, answers and deletes; also when killed again, with the disk filled each ' +
      'time',
    async () => {
      let url = await start()
      const key = readFileSync(path.join(data, 'first-key.txt'), 'utf8').trim()
      const reserve = path.join(data, 'reserve')
      await until('the reserve', () => existsSync(reserve) && statSync(reserve).size === 8 << 20)
      const datasets: string[] = []
      for (let count = 0; count < 4; count++)
        datasets.push((await client(url, key).upload(colourRows(8 + count))).body.id)
      for (const doomed of datasets.slice(0, 3)) {
        fill()
        server!.kill('SIGKILL')
        await ended(server!)
        // What SQLite recreates at a start, and what a kill may have left free.
        for (const name of ['tunery.db-shm', 'server.lock-journal']) rmSync(path.join(data, name), { force: true })
        fill()
        url = await start()
        const { api } = client(url, key)
        await until('the reserve to be taken back', () => statSync(reserve).size > 7 << 20)
        assert.equal((await api('GET', `/datasets/${doomed}`)).status, 200)
        const asked = { model: tiny, messages: [{ role: 'user', content: 'red' }], max_tokens: 4 }
        const answer = await api('POST', '/chat/completions', asked)
        assert.equal(answer.status, 200, JSON.stringify(answer.body))
        fill()
        assert.equal((await api('DELETE', `/datasets/${doomed}`)).status, 200)
        assert.equal((await api('GET', `/datasets/${doomed}`)).status, 404)
      }
      for (let each = 0; each < fillers; each++) rmSync(path.join(data, `filler${each}`), { force: true })
      const { api, upload } = client(url, key)
      assert.equal((await upload(colourRows(200))).status, 201)
      assert.equal((await api('GET', `/datasets/${datasets[3]}`)).status, 200)
    },
  )
})
