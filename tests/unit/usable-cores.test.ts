// CPU quotas of control groups, as the files of different systems say them.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { allowedCores, cpuQuota, usableCores } from '../../lib/usable-cores.ts'

const folders: string[] = []
after(() => {
  for (const folder of folders) rmSync(folder, { recursive: true })
})

/** The quota on a system with these files. */
function quotaOf(files: Record<string, string>): number {
  const root = mkdtempSync(path.join(tmpdir(), 'tunery-cores-'))
  folders.push(root)
  for (const [file, content] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(root, file)), { recursive: true })
    writeFileSync(path.join(root, file), content)
  }
  return cpuQuota(root)
}
const none = Number.POSITIVE_INFINITY
const v2 = '30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n'
const v1 = (root = '/') =>
  `33 25 0:29 ${root} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n` +
  `34 25 0:30 ${root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n`

test('version 2: the least quota of the group and its parents counts', () => {
  const system = { 'proc/self/cgroup': '0::/a.slice/b.scope\n', 'proc/self/mountinfo': v2 }
  assert.equal(quotaOf(system), none)
  const file = 'sys/fs/cgroup/a.slice/b.scope/cpu.max'
  assert.equal(quotaOf({ ...system, [file]: 'max 100000\n' }), none)
  assert.equal(quotaOf({ ...system, [file]: '150000 100000\n' }), 1.5)
  assert.equal(quotaOf({ ...system, [file]: '400000 100000\n', 'sys/fs/cgroup/a.slice/cpu.max': '50000 50000\n' }), 1)
})

test('version 2 in a container: its group is the root that it sees', () => {
  const max = { 'sys/fs/cgroup/cpu.max': '50000 100000\n' }
  assert.equal(quotaOf({ 'proc/self/cgroup': '0::/\n', 'proc/self/mountinfo': v2, ...max }), 0.5)
  // Without its own namespace, the path is the host's.
  const mountinfo = v2.replace(' / /sys', ' /docker/1f /sys')
  assert.equal(quotaOf({ 'proc/self/cgroup': '0::/docker/1f\n', 'proc/self/mountinfo': mountinfo, ...max }), 0.5)
  assert.equal(quotaOf({ 'proc/self/cgroup': '0::/../../other\n', 'proc/self/mountinfo': v2, ...max }), 0.5)
})

test('version 1: the quota of the cpu controller, of the group and its parents', () => {
  const cgroup = '7:cpuset:/\n4:cpu,cpuacct:/docker/1f\n1:name=systemd:/docker/1f\n0::/x\n'
  const files = (folder: string, quota: number) => ({
    [`${folder}/cpu.cfs_quota_us`]: `${quota}\n`,
    [`${folder}/cpu.cfs_period_us`]: '100000\n',
  })
  const system = { 'proc/self/cgroup': cgroup, 'proc/self/mountinfo': v1() }
  const folder = 'sys/fs/cgroup/cpu,cpuacct'
  assert.equal(quotaOf({ ...system, ...files(`${folder}/docker/1f`, -1) }), none)
  assert.equal(quotaOf({ ...system, ...files(`${folder}/docker/1f`, 200_000) }), 2)
  assert.equal(quotaOf({ ...system, ...files(`${folder}/docker`, 100_000) }), 1)
  const inside = { 'proc/self/cgroup': cgroup, 'proc/self/mountinfo': v1('/docker/1f') }
  assert.equal(quotaOf({ ...inside, ...files(folder, 300_000) }), 3)
})

test('files that are missing, empty or no numbers are no quota', () => {
  assert.equal(quotaOf({}), none)
  const system = { 'proc/self/cgroup': '0::/\n', 'proc/self/mountinfo': `${v2}garbage\n\n` }
  for (const text of ['', 'x', 'max', '0 100000', '-1 100000', '100000', '100000 0'])
    assert.equal(quotaOf({ ...system, 'sys/fs/cgroup/cpu.max': text }), none, text)
})

test('a process counts the cores of its affinity, at least one', () => {
  assert.equal(usableCores(), Math.max(1, Math.min(availableParallelism(), Math.floor(cpuQuota()))))
  const [first] = allowedCores()
  if (!existsSync('/usr/bin/taskset')) return
  const script = `import { allowedCores, usableCores } from '${path.resolve('lib/usable-cores.ts')}'
    console.log(JSON.stringify([allowedCores(), usableCores()]))`
  const args = ['-c', String(first), process.execPath, '--input-type=module-typescript', '-e', script]
  assert.deepEqual(JSON.parse(spawnSync('taskset', args, { encoding: 'utf8' }).stdout), [[first], 1])
})
