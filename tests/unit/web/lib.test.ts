// What the dashboard's pages compute: numbers as text, errors at their fields, where a sign-in leads.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { passwordLength } from '../../../contract/sign-in.ts'
import { TuneryError } from '../../../sdk/index.ts'
import { fieldError, formError } from '../../../web/lib/errors.ts'
import {
  formatBytes,
  formatCompact,
  formatCount,
  formatDuration,
  formatMoney,
  formatNumber,
  formatPercent,
  formatRelative,
  plural,
} from '../../../web/lib/format.ts'
import { leastPassword, safeNext } from '../../../web/lib/secret.ts'

test('numbers are short, whole where they are counts, and a missing one is a dash', () => {
  assert.deepEqual([formatCount(1234567), formatCount(0), formatCount(null)], ['1,234,567', '0', '–'])
  assert.deepEqual([formatCompact(12345), formatCompact(999)], ['12.3K', '999'])
  assert.deepEqual([formatNumber(0.123456), formatNumber(0), formatNumber(undefined)], ['0.123', '0', '–'])
  assert.deepEqual([formatNumber(0.0000123), formatNumber(Number.NaN)], ['1.23e-5', '–'])
  assert.deepEqual([formatPercent(0.875), formatPercent(0.875, 1)], ['88%', '87.5%'])
  assert.deepEqual(
    [plural(1, 'row'), plural(2, 'row'), plural(0, 'entry', 'entries')],
    ['1 row', '2 rows', '0 entries'],
  )
})

test('sizes use the units of the API, and round up to the next unit instead of 1000', () => {
  assert.deepEqual([0, 999, 1000, 1234, 999_499, 999_999, 1_500_000_000, null].map(formatBytes), [
    '0 B',
    '999 B',
    '1 kB',
    '1.23 kB',
    '999 kB',
    '1 MB',
    '1.5 GB',
    '–',
  ])
})

test('durations have two units at most, and never 60 of one', () => {
  assert.deepEqual([0, 0.42, 9.96, 59.4, 59.6, 185, 3599.7, 7260, 86_399, 100_000, null].map(formatDuration), [
    '0 s',
    '420 ms',
    '10 s',
    '59 s',
    '1 min 00 s',
    '3 min 05 s',
    '1 h 00 min',
    '2 h 01 min',
    '1 d 0 h',
    '1 d 4 h',
    '–',
  ])
})

test('money keeps two digits of small amounts, and takes currencies that are no codes', () => {
  assert.deepEqual(
    [12.345, 0.5, 0.00423, 0.000000012, 0].map((amount) => formatMoney(amount, 'USD')),
    ['$12.35', '$0.50', '$0.0042', '$0.00000001', '$0.00'],
  )
  assert.equal(formatMoney(3, 'credits'), '3.00 credits')
  assert.equal(formatMoney(null, 'USD'), '–')
})

test('times are relative within a month', () => {
  const now = Date.parse('2026-03-10T12:00:00Z')
  const at = (seconds: number) => formatRelative(new Date(now + seconds * 1000), now)
  assert.deepEqual([0, -44, -60, -185, -3600, -86_400, 7200].map(at), [
    'just now',
    'just now',
    '1 minute ago',
    '3 minutes ago',
    '1 hour ago',
    'yesterday',
    'in 2 hours',
  ])
  assert.match(at(-60 * 86_400), /2026/)
})

test('an error of the API stands at the field that it names, and by the button otherwise', () => {
  const named = new TuneryError(400, new Headers(), {
    code: 'invalid_request',
    message: 'is taken',
    details: { field: 'name' },
  })
  assert.equal(fieldError(named, 'name'), 'Is taken')
  assert.equal(fieldError(named, 'email'), undefined)
  assert.equal(formError(named, ['name', 'email']), undefined)
  assert.equal(formError(named, ['email']), 'is taken')
  assert.equal(formError(new Error('lost'), ['name']), 'lost')
  assert.equal(formError(null, ['name']), undefined)
})

test('a sign-in leads to an address of the dashboard alone', () => {
  const origin = 'https://tunery.example.com'
  const cases: [string | undefined, string][] = [
    ['/jobs/job_1?tab=log', '/jobs/job_1?tab=log'],
    [undefined, '/'],
    ['jobs', '/'],
    ['https://evil.example/', '/'],
    ['//evil.example/', '/'],
    ['/\\evil.example/', '/'],
    ['/\t/evil.example', '/'],
    ['/.//evil.example', '/'],
    ['javascript:alert(1)', '/'],
  ]
  for (const [next, leads] of cases) assert.equal(safeNext(next, origin), leads, next)
})

test('the form of a password asks for what the API asks for', () => {
  assert.equal(leastPassword, passwordLength.min)
})
