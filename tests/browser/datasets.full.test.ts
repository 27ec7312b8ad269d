// From examples to a job in the browser: upload, correct, look, choose, start.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import type { Page } from 'playwright-core'
import { entriesOf, type GroupName, hyperparameters } from '../../contract/hyperparameters.ts'
import { root } from '../../lib/root.ts'
import type { CreateJobInput, Dataset } from '../../sdk/index.ts'
import { until } from '../support/client.ts'
import { tiny } from '../support/tiny.ts'
import { browserService, browserTest, choose, heading, patiently, phone, problemsOf, settled } from './support.ts'

const { service, tunery } = browserService('datasets')

const examples = readFileSync(path.join(root, 'examples/ticket-triage.jsonl'), 'utf8').trim().split('\n')
const hostile = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
const row = (question: string, answer?: string) =>
  JSON.stringify({
    messages: [
      { role: 'user', content: question },
      ...(answer === undefined ? [] : [{ role: 'assistant', content: answer }]),
    ],
  })

const tab = (page: Page, name: string) => page.getByRole('tab', { name: new RegExp(`^${name}`) }).click()

/** axe, in both schemes, and no wider than the window. */
async function assertFit(page: Page, what: string): Promise<void> {
  for (const colorScheme of ['dark', 'light'] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
    await settled(page)
    assert.deepEqual(await problemsOf(page), [], `${what}, ${colorScheme}`)
  }
  const { scrollWidth, clientWidth } = await page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement
    return { scrollWidth, clientWidth }
  })
  assert.ok(scrollWidth <= clientWidth, `${what} is ${scrollWidth} px wide in ${clientWidth}`)
  assert.equal(await page.evaluate(() => 'owned' in window), false, `${what}: a text has run`)
}

test('a table with columns of its own names is mapped in a dialog, and so are JSON lines', browserTest, async () => {
  const { page, complaints } = await service.visit({ size: phone })
  await page.goto('/datasets')
  await heading(page, 'Datasets')
  const map = async (chosen: [string, string][]) => {
    const dialog = page.getByRole('dialog', { name: 'Map columns' })
    await dialog.getByRole('button', { name: 'Upload with these columns' }).click()
    await dialog.getByText('Choose a column.').first().waitFor()
    for (const [label, column] of chosen) await choose(dialog, label, column)
    await assertFit(page, 'the dialog of columns')
    await dialog.getByRole('button', { name: 'Upload with these columns' }).click()
  }
  const answers: [string, string][] = [
    ['Prompt', 'Frage'],
    ['Answer', 'Antwort'],
  ]
  const chooser = page.locator('input[type=file]').first()
  await chooser.setInputFiles(path.join(root, 'tests/fixtures/cases/own-columns.csv'))
  await page.getByRole('button', { name: 'Map columns' }).click()
  await map(answers)
  await heading(page, 'own-columns.csv')
  await page.getByText('Frage as prompt, Antwort as completion').waitFor(patiently)
  await page.goto('/datasets')
  await page.getByRole('button', { name: 'Paste' }).click()
  await page.getByLabel('Rows').fill('{"Frage":"Wann offen?","Antwort":"Von neun bis fünf."}')
  await page.getByRole('button', { name: 'Add the rows' }).click()
  await map(answers)
  await heading(page, 'Pasted rows')
  for (const dataset of (await tunery.datasets.list()).items) {
    assert.deepEqual(dataset.columns, { prompt: 'Frage', completion: 'Antwort' })
    assert.equal((await tunery.datasets.validate(dataset.id)).valid, true)
    await tunery.datasets.delete(dataset.id)
  }
  // The table was refused before its columns were told.
  assert.deepEqual(
    complaints.filter((complaint) => !complaint.includes('status of 400')),
    [],
  )
})

test('wrong rows are corrected where they are shown, and train, with every text a text', browserTest, async () => {
  const { page, complaints } = await service.visit({ size: phone })
  await page.goto('/datasets')
  await heading(page, 'Datasets')
  await page.getByText('No datasets yet').waitFor()
  await page.getByRole('button', { name: 'Paste' }).click()
  const rows = [...examples.slice(0, 6), row(hostile), '{"messages":[', examples[0]!, row(hostile, hostile)]
  await page.getByLabel('Rows').fill(rows.join('\n'))
  // What was typed is not lost by a refresh.
  await page.reload()
  await page.getByRole('button', { name: 'Paste' }).click()
  assert.equal(await page.getByLabel('Rows').inputValue(), rows.join('\n'))
  await page.getByLabel(/^Name/).fill(`tickets ${hostile}`)
  await page.getByRole('button', { name: 'Add the rows' }).click()

  // Its page opens, and leads to what is wrong, line by line.
  await heading(page, `tickets ${hostile}`)
  await page.getByText('2 of 10 rows invalid').waitFor()
  await assertFit(page, 'overview')
  await page.getByRole('link', { name: 'Show and fix problems' }).click()
  await page.getByText(/Does not end with a message of the assistant/).waitFor()
  await page.getByText(/Is not valid JSON/).waitFor()
  await assertFit(page, 'problems')
  await page.getByLabel(/^Line 7/).fill(row(hostile, 'Safe.'))
  await page.getByText('Good JSON now').waitFor()
  await page.getByRole('checkbox', { name: /line 8/ }).check()
  await page.getByRole('checkbox', { name: 'Leave out 1 duplicate' }).check()
  await page.reload()
  assert.equal(await page.getByLabel(/^Line 7/).inputValue(), row(hostile, 'Safe.'), 'kept through a refresh')
  await page.getByRole('button', { name: 'Upload the corrected rows' }).click()

  await heading(page, `tickets ${hostile} (corrected)`)
  await page.getByText('All rows are valid').waitFor(patiently)
  await page.getByText('No rows are truncated').waitFor()
  await tab(page, 'Rows')
  await page.getByRole('article', { name: 'Row 1', exact: true }).getByText('assistant').waitFor()
  await page.getByLabel('Row to go to').fill('8')
  await page.getByRole('button', { name: 'Go', exact: true }).click()
  await page.getByRole('article', { name: 'Row 8', exact: true }).getByText(hostile).first().waitFor()
  await page.getByRole('link', { name: 'Tokens of row 8' }).click()

  // The learned tokens are the answer and its end.
  await page.locator('mark', { hasText: '[learned:' }).waitFor()
  const learned = await page.locator('mark', { hasText: '[learned:' }).innerText()
  assert.ok(learned.replaceAll('\n', '').includes(hostile), learned)
  await assertFit(page, 'tokens')
  await page.getByLabel('Cut rows at').fill('8')
  await page.getByText('Nothing of this row is learned').waitFor()
  await page.getByLabel('Cut rows at').fill('')

  await page.getByRole('link', { name: 'Train' }).click()
  await heading(page, 'New job')
  await page.getByText(/^~.* s$/).waitFor(patiently)
  await assertFit(page, 'new job')
  await page.getByRole('button', { name: 'Start job' }).click()
  await page.waitForURL(/\/jobs\/job_/)
  const job = await tunery.jobs.get(/job_\w+/.exec(page.url())![0])
  assert.equal(job.model_id, tiny)
  assert.deepEqual(job.config, {}, 'defaults are left to the service')
  await tunery.jobs.cancel(job.id).catch(() => undefined)
  // A cut that leaves nothing is no error; every other request was answered.
  assert.deepEqual(complaints, [])
})

test(
  'a large upload continues after a lost connection and a refresh, with the parts that are missing',
  browserTest,
  async () => {
    const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-upload-'))
    const file = path.join(folder, 'large.jsonl')
    const line = row('long '.repeat(20_000), 'short')
    writeFileSync(file, `${line}\n`.repeat(180))
    const { page } = await service.visit()
    let parts = 0
    let lost = false
    await page.route('**/v1/uploads/*/parts', (route) => {
      if (lost || parts === 1) {
        lost = true
        return route.abort('connectionreset')
      }
      parts++
      return route.continue()
    })
    try {
      await page.goto('/datasets')
      await page.getByLabel('Drop a file of examples here').setInputFiles(file)
      await page.getByText(/^8.39 MB of 18/).waitFor()
      await until('the connection to be lost', () => lost)
      await page.reload()
      await page.getByText(/Stopped at 4\d%. Choose the same file within an hour to resume/).waitFor()
      lost = false
      parts = 10
      await page.getByLabel('The file large.jsonl').setInputFiles(file)
      await page.getByRole('link', { name: 'View' }).waitFor()
      assert.equal(parts, 12, 'the first part is not sent again')
      const { items } = await tunery.datasets.list({ name: 'large' })
      assert.deepEqual(
        items.map(({ rows }) => rows),
        [180],
      )
      await tunery.datasets.delete(items[0]!.id)
    } finally {
      rmSync(folder, { recursive: true })
    }
  },
)

test(
  'each setting of a job has its default, range and meaning; a clone has those of its job',
  browserTest,
  async () => {
    const pairs = Array.from({ length: 20 }, (_, index) =>
      JSON.stringify({ prompt: `Colour ${index}?`, chosen: `red ${index}`, rejected: `a stone ${index}` }),
    )
    const dataset: Dataset = await tunery.datasets.upload(pairs.join('\n'), { name: 'pairs' })
    await until('its rows', async () => (await tunery.datasets.get(dataset.id)).status === 'ready')
    const { page, complaints } = await service.visit()
    await page.goto(`/jobs/new?dataset=${dataset.id}`)
    await page.getByText('Learns which of two answers is better.').waitFor()
    for (const group of ['Training', 'Adapter', 'Evaluation', 'Preferences'])
      await page.locator('summary', { hasText: group }).click()
    // The last of those that were opened.
    await page.getByLabel(/^Beta/).waitFor()
    const main = (await page.locator('main').innerText()).replaceAll(/\s+/g, ' ')
    for (const group of Object.keys(hyperparameters) as GroupName[])
      for (const [name, { request, description }] of entriesOf(group)) {
        if (!request || name === 'objective') continue
        // The rest is for other objectives.
        if (group === 'method_options' && !description.includes('`dpo`')) continue
        const said = `${description.replaceAll('`', '')} Default: `
        assert.ok(main.includes(said), `${name}: ${said}`)
      }
    assert.ok(main.includes('Number of passes over the whole dataset. Default: 2. From 1 to 50.'))
    await assertFit(page, 'all settings')

    // A wrong value is told before anything is asked, and the job is not started.
    await page.getByLabel(/^Epochs/).fill('99')
    await page.getByText('Must be from 1 to 50.').waitFor()
    await page.getByRole('button', { name: 'Start job' }).click()
    await page.getByText('Fix 1 setting under Advanced.').waitFor()
    assert.equal((await tunery.jobs.list({ name: 'pairs' })).items.length, 0)
    await page.getByLabel(/^Epochs/).fill('3')
    await page.getByLabel(/^Learning rate/).fill('0.00025')
    await page.getByLabel(/^Beta/).fill('0.2')
    await page.locator('summary', { hasText: 'View as code' }).click()
    const shown: CreateJobInput = JSON.parse(await page.locator('pre', { hasText: '"model_id"' }).innerText())
    assert.deepEqual(shown, {
      model_id: tiny,
      dataset_id: dataset.id,
      config: {
        method_options: { beta: 0.2, objective: 'dpo' },
        training_config: { epochs: 3, learning_rate: 0.00025 },
        evaluation_config: { validation_split: 0.1 },
      },
    })
    const { id } = await tunery.jobs.create(shown)
    await tunery.jobs.cancel(id)
    await page.goto(`/jobs/new?clone=${id}`)
    await page.getByText(/^[45] settings changed\.$/).waitFor()
    assert.equal(await page.getByLabel(/^Epochs/).inputValue(), '3')
    assert.equal(await page.getByLabel(/^Learning rate/).inputValue(), '0.00025')
    assert.equal(await page.getByLabel(/^Beta/).inputValue(), '0.2')

    // A dataset that something needs stays, and what needs it is told; then it goes.
    const waiting = await tunery.jobs.create(shown)
    await tunery.jobs.pause(waiting.id)
    await page.goto(`/datasets/${dataset.id}`)
    const deletion = async () => {
      await page.getByRole('button', { name: 'More actions' }).click()
      await page.getByRole('menuitem', { name: 'Delete' }).click()
      await page.getByRole('button', { name: 'Delete dataset' }).click()
    }
    await deletion()
    await page.getByText(/The dataset is needed by .*job_/).waitFor()
    await page.getByRole('button', { name: 'Cancel' }).click()
    await tunery.jobs.cancel(waiting.id)
    await deletion()
    await heading(page, 'Datasets')
    await assert.rejects(async () => tunery.datasets.get(dataset.id), { code: 'dataset_not_found' })
    assert.deepEqual(
      complaints.filter((each) => !/40[049]/.test(each)),
      [],
    )
  },
)
