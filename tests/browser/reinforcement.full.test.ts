// Learning from graders in the browser: the form with its graders and bounds, and the page with rewards and rollouts.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, test } from 'node:test'
import type { Locator, Page } from 'playwright-core'
import { tiny } from '../support/tiny.ts'
import {
  browserService,
  browserTest,
  choose,
  desktop,
  heading,
  patiently,
  phone,
  problemsOf,
  settled,
} from './support.ts'

const { service, tunery } = browserService('reinforcement', { TUNERY_WEBHOOK_ALLOW: '127.0.0.1/32' })

/** A grader of the user's own: half a point for every answer. */
const endpoint = createServer((request, response) => {
  request.resume().on('end', () => {
    response.setHeader('content-type', 'application/json').end('{"score": 0.5}')
  })
})
let url: string
before(async () => {
  await new Promise<void>((resolve) => endpoint.listen(0, '127.0.0.1', resolve))
  url = `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}/score`
})
after(() => endpoint.close())

const hostile = '<img src=x onerror="window.hit=1">'
const rows = (count: number) =>
  Array.from({ length: count }, (_, index) =>
    JSON.stringify({ messages: [{ role: 'user', content: `word ${index} ${hostile}?` }], wanted: '[kvz]' }),
  ).join('\n')

/** Fails on a few answers of the tiny base, which are random letters. */
const source = `import re

def grade(sample, item):
    text = sample["output_text"]
    if text.startswith("b"):
        raise ValueError("no answer may begin with b")
    return 1.0 if re.search(item["wanted"], text) else 0.0
`

const tab = (page: Page, name: string) => page.getByRole('tab', { name: new RegExp(`^${name}`) }).click()
/** Under Advanced: folded until something in it is changed. */
const setting = (page: Page, name: string) => page.getByRole('textbox', { name: new RegExp(`^${name}`) })
/** The box of a grader, by its place. */
const grader = (page: Page, place: number): Locator =>
  page.getByRole('group', { name: 'Graders' }).locator('> div').nth(place)

let job_id: string
let page: Page
let complaints: string[]

test(
  'a job is begun in the form, with a pattern and Python as graders, and its bounds are shown',
  browserTest,
  async () => {
    const dataset = await tunery.datasets.upload(rows(24), { name: 'words' })
    ;({ page, complaints } = await service.visit())
    await page.goto(`/jobs/new?dataset=${dataset.id}`)
    await page.getByText('Learns from the scores that graders give its own answers.').waitFor()
    assert.ok(await page.getByRole('radio', { name: /^Full/ }).isDisabled())
    await choose(page, 'Starting model', /tiny/)

    await choose(grader(page, 0), 'Kind', 'Text matches a pattern')
    await grader(page, 0).getByLabel('Name').fill('letters')
    await grader(page, 0).getByLabel('Pattern').fill('[kvz]')
    await page.getByRole('button', { name: 'Add grader' }).click()
    await choose(grader(page, 1), 'Kind', 'Custom JSON')
    await grader(page, 1).getByRole('textbox', { name: 'Grader' }).fill('{')
    await page.getByText('Fix the graders.').waitFor()
    await page.getByText(/The grader: this is not JSON/).waitFor()
    await choose(grader(page, 1), 'Kind', 'Python')
    await grader(page, 1).getByLabel('Name').fill('code')
    await grader(page, 1).getByLabel('Source').fill(source)
    await setting(page, 'Group size').fill('4')
    await setting(page, 'Max tokens').fill('3')

    // 22 prompts in 6 steps of 4, two passes, 4 answers of 3 tokens, refilled twice; 2 held-out prompts three times.
    const most = 6 * 2 * 4 * 4 * 3 * 3 + 3 * 2 * 3
    await page.getByText(`≤ ${(most / 1000).toFixed(1)}`).waitFor(patiently)
    await page.getByText('known after a first job').waitFor()
    await page.setViewportSize(phone)
    const width = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth)
    assert.ok(width <= 0, `${width} px too wide`)
    await page.setViewportSize(desktop)
    assert.deepEqual(await problemsOf(page), [])

    // A reload leaves what was typed.
    await page.reload()
    assert.equal(await grader(page, 1).getByLabel('Source').inputValue(), source)
    await page.getByRole('button', { name: 'Start job' }).click()
    await heading(page, /words/)
    job_id = new URL(page.url()).pathname.split('/').at(-1)!
    const { config } = await tunery.jobs.get(job_id)
    const defaults = { input: '{{sample.output_text}}', ignore_case: false, negate: false }
    assert.deepEqual(config.method_options, {
      objective: 'reinforcement',
      graders: [
        { ...{ type: 'regex', name: 'letters', pattern: '[kvz]' }, ...defaults },
        { type: 'python', name: 'code', source, pass_threshold: 0.5 },
      ],
      group_size: 4,
      max_tokens: 3,
    })
    assert.equal(config.evaluation_config?.validation_split, 0.1)
  },
)

test('its page shows rewards, each grader, and what answers are like, and no losses', browserTest, async () => {
  await page.getByRole('img', { name: /^Reward\. Training reward/ }).waitFor(patiently)
  await page.getByRole('heading', { name: 'Trained model' }).waitFor(patiently)
  await settled(page)
  const job = await tunery.jobs.get(job_id)
  assert.equal(job.status, 'completed')
  for (const name of ['Graders', 'Answer length', 'Cut answers', 'Entropy', 'Diversity', 'Clipped tokens'])
    await page.getByRole('img', { name: new RegExp(`^${name}\\. `) }).waitFor()
  for (const name of ['Probability gap', 'Grader failures', 'Grader latency', 'Time of a step'])
    await page.getByRole('img', { name: new RegExp(`^${name}\\. `) }).waitFor()
  assert.match(
    (await page.getByRole('img', { name: /^Graders\. / }).getAttribute('aria-label')) ?? '',
    /letters.*letters, held-out.*code.*code, held-out/,
  )
  assert.equal(await page.getByText('Validation loss').count(), 0)
  assert.equal(await page.getByRole('tab', { name: 'Highest-loss rows' }).count(), 0)
  const reward = page
    .locator('dl div', { hasText: /^Held-out reward/ })
    .locator('dd')
    .first()
  assert.equal(Number(await reward.innerText()).toFixed(2), job.metrics.validation_reward!.toFixed(2))
  assert.deepEqual(await problemsOf(page), [])
  await tab(page, 'Checkpoints')
  await page.getByRole('columnheader', { name: 'Held-out reward' }).waitFor()
})

test(
  'answers of a step are read beside each other, with what each grader gave or why it failed',
  browserTest,
  async () => {
    const { items } = await tunery.jobs.rollouts.list(job_id, { limit: 100 })
    assert.equal(items.filter(({ training }) => training).length, 12)
    const failed = items.find(({ training }) => training && training.failures > 0)
    assert.ok(failed, 'a grader has failed')
    await page.goto(`/jobs/${job_id}?tab=rollouts&step=${failed.step}`)
    await page.getByText('ValueError: no answer may begin with b').first().waitFor()
    await page.getByText('no score').first().waitFor()
    const kept = await tunery.jobs.rollouts.get(job_id, String(failed.step))
    const answers = kept.training!.groups.reduce((sum, group) => sum + group.answers.length, 0)
    assert.equal(await page.getByRole('article').count(), answers)
    assert.deepEqual(await problemsOf(page), [])

    await page.getByRole('slider', { name: 'Step' }).press('Home')
    await page.getByText('Step 1', { exact: true }).waitFor()
    assert.equal(new URL(page.url()).searchParams.get('step'), '1')
    await page.getByRole('button', { name: 'Held-out', exact: true }).click()
    await page.getByText('Held-out prompts after step 0').waitFor()
    await page.reload()
    await page.getByText('Held-out prompts after step 0').waitFor()
    assert.equal(await page.evaluate(() => 'hit' in window), false, 'texts of users are text')

    for (const [kind, options] of [
      ['dark', { scheme: 'dark' }],
      ['phone', { size: phone }],
    ] as const) {
      const other = await service.visit(options)
      for (const address of ['', '?tab=rollouts', '?tab=rollouts&split=validation']) {
        await other.page.goto(`/jobs/${job_id}${address}`)
        await settled(other.page)
        await other.page
          .getByText(address ? /^\d+ tokens?$/ : 'Answer length')
          .first()
          .waitFor()
        assert.deepEqual(await problemsOf(other.page), [], `${kind} ${address}`)
        const width = await other.page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth)
        assert.ok(width <= 0, `${kind} ${address}: ${width} px too wide`)
      }
      await other.page.goto(`/jobs/new?clone=${job_id}`)
      await other.page.getByText(/^≤ /).first().waitFor(patiently)
      assert.deepEqual(await problemsOf(other.page), [], `${kind} clone`)
      assert.deepEqual(other.complaints, [])
    }
    assert.deepEqual(complaints, [])
  },
)

test('a clone has the graders in their fields, and a bound of the time by the job before', browserTest, async () => {
  await page.goto(`/jobs/new?clone=${job_id}`)
  assert.equal(await grader(page, 0).getByLabel('Pattern').inputValue(), '[kvz]')
  assert.equal(await grader(page, 1).getByLabel('Source').inputValue(), source)
  await page.getByText('at the rate of earlier jobs').waitFor(patiently)
})

test('an evaluation takes Python, an endpoint and a judge from its dialog', browserTest, async () => {
  await page.goto('/evaluations')
  await page.getByRole('button', { name: 'New evaluation' }).first().click()
  const dialog = page.getByRole('dialog')
  await dialog.getByRole('combobox', { name: 'Model' }).click()
  await page.getByRole('option', { name: tiny }).first().click()
  await dialog.getByRole('combobox', { name: 'Dataset' }).click()
  await page.getByRole('option', { name: /words/ }).first().click()
  await choose(grader(page, 0), 'Kind', 'Python')
  await grader(page, 0).getByLabel('Name').fill('code')
  await grader(page, 0).getByLabel('Source').fill('def grade(sample, item):\n    return 0.25\n')
  await dialog.getByRole('button', { name: 'Add grader' }).click()
  await choose(grader(page, 1), 'Kind', 'Your endpoint')
  await grader(page, 1).getByLabel('Name').fill('mine')
  await grader(page, 1).getByLabel('Address').fill(url)
  await dialog.getByRole('button', { name: 'Add grader' }).click()
  await choose(grader(page, 2), 'Kind', 'Model judge: score')
  await grader(page, 2).getByLabel('Name').fill('judge')
  await choose(grader(page, 2), 'Judge', /^test\/tiny$/)
  await grader(page, 2).getByLabel('Judge prompt').fill('Rate {{sample.output_text}} from 0 to 1.')
  assert.deepEqual(await problemsOf(page), [])
  await dialog.getByRole('button', { name: 'Evaluate' }).click()
  await page.waitForURL(/\/evaluations\/eval_/)
  const id = new URL(page.url()).pathname.split('/').at(-1)!
  const { status, result } = await tunery.evaluations.wait(id)
  assert.equal(status, 'completed')
  const { graders } = result!.model
  assert.deepEqual([graders.code, graders.mine], [0.25, 0.5])
  assert.ok(graders.judge! >= 0 && graders.judge! <= 1, `${graders.judge}`)
  await page.getByText('completed', { exact: true }).waitFor(patiently)
})
