import { createReadStream } from 'node:fs'
import { CsvError, parse } from 'csv-parse'
import type { Columns } from '../../../../contract/datasets.ts'
import { maxLineBytes } from '../check-rows.ts'
import {
  columnsNeeded,
  columnsUnknown,
  listed,
  missingColumns,
  type ReadRow,
  repeatedColumn,
  rowMaker,
  Unreadable,
} from './columns.ts'
import { pictureColumns } from './picture-columns.ts'

/** Reads a CSV file (RFC 4180) with a header. A byte order mark and CRLF are allowed. */
export async function* readCsv(file: string, columns?: Columns): AsyncGenerator<ReadRow> {
  const parser = parse({
    bom: true,
    info: true,
    skip_empty_lines: true,
    relax_column_count: true,
    max_record_size: maxLineBytes,
  })
  const input = createReadStream(file)
  input.on('error', (error) => parser.destroy(error))
  const decoder = new TextDecoder('utf-8', { fatal: true })
  input.on('data', (chunk) => {
    try {
      decoder.decode(chunk as Buffer, { stream: true })
    } catch {
      parser.destroy(
        new Unreadable('file_not_utf8', 'The file is not UTF-8 text. Save it as UTF-8 and upload it again.'),
      )
    }
  })
  input.pipe(parser)
  let header: string[] | undefined
  let makeRow: ReturnType<typeof rowMaker>
  let line = 1
  try {
    for await (const { record, info } of parser as AsyncIterable<{ record: string[]; info: { lines: number } }>) {
      if (!header || !makeRow) {
        header = record.map((name) => name.trim())
        if (header.some(hasNul))
          throw new Unreadable(
            'file_not_utf8',
            'The file has NUL bytes in its first line: it is UTF-16, or no text. Save it as UTF-8 and upload it again.',
          )
        const wrong = repeatedColumn(header) ?? missingColumns(columns, header)
        if (wrong) throw new Unreadable('file_not_readable', wrong, header)
        const pictures = pictureColumns.find((name) => (columns ? name in columns : header!.includes(name)))
        if (pictures)
          throw new Unreadable(
            'file_not_readable',
            `The CSV file has a column '${pictures}', and CSV cannot hold pictures. Upload rows with pictures as ` +
              'JSON lines, parquet, or a zip of a saved dataset folder; or leave the column out, to train on the ' +
              'text alone.',
          )
        makeRow = rowMaker(header, columns)
        if (!makeRow)
          throw columnsUnknown(
            columns,
            header,
            `The CSV file's first line must name ${columnsNeeded}; it names ${listed(header)}.${separatorHint(header)}`,
          )
      } else if (record.length !== header.length)
        yield {
          line,
          problem: [
            'columns_wrong',
            `has ${record.length} fields where the header has ${header.length}. Put quotes around a text ` +
              'with commas in it.',
          ],
        }
      else if (record.some(hasNul))
        yield {
          line,
          problem: ['nul_byte', 'has a NUL byte, which no text has. Remove it, or save the file as UTF-8.'],
        }
      else yield { line, row: makeRow(Object.fromEntries(header.map((name, index) => [name, record[index]]))) }
      // A record may span several lines.
      line = info.lines + 1
    }
  } catch (error) {
    if (!(error instanceof CsvError)) throw error
    if (error.code === 'CSV_MAX_RECORD_SIZE')
      throw new Unreadable(
        'file_not_readable',
        `The CSV file has a record of more than ${maxLineBytes / 1024 / 1024} MB at line ${line}: a ` +
          'quote may be missing.',
      )
    throw new Unreadable('file_not_readable', `The file cannot be read as CSV: ${error.message.slice(0, 300)}`)
  }
}

const hasNul = (field: string) => field.includes('\0')

const separatorHint = ([first, ...others]: string[]) =>
  others.length === 0 && /[;\t]/.test(first!) ? 'Write it with commas between the columns, not semicolons or tabs.' : ''
