// The search of the docs: titles, headings and text of all pages, and the operations of the API.
import { useQuery } from '@tanstack/react-query'
import { FileText, Hash } from 'lucide-react'
import { useMemo } from 'react'
import { type Found, searchOptions } from '../../lib/docs-search.ts'
import { operationsOf, useDescription } from '../../lib/openapi.ts'
import { MethodName } from '../../ui/method.tsx'
import { SearchDialog, type SearchResult } from '../../ui/search-dialog.tsx'

const most = 12

export const DocsSearch = (props: { open: boolean; onOpenChange: (open: boolean) => void }) => (
  <SearchDialog {...props} label="Search the docs" placeholder="Search pages and operations" useResults={useResults} />
)

/** Loaded when the search is opened for the first time. */
const useIndex = () =>
  useQuery({
    queryKey: ['docs-search'],
    queryFn: async () => {
      const [{ default: MiniSearch }, { default: text }] = await Promise.all([
        import('minisearch'),
        import('virtual:docs-search'),
      ])
      return MiniSearch.loadJSON<Found>(text, searchOptions)
    },
    staleTime: Number.POSITIVE_INFINITY,
  })

function useResults(asked: string): { results: SearchResult[]; said: string } {
  const { data: index, error } = useIndex()
  const { data: description } = useDescription()
  const results = useMemo((): SearchResult[] => {
    if (asked === '' || !index) return []
    const words = asked.toLowerCase().split(/\s+/)
    const operations = description ? operationsOf(description) : []
    const called = operations.filter(({ id, path, summary, method }) => {
      const all = `${id} ${method} ${path} ${summary}`.toLowerCase()
      return words.every((word) => all.includes(word))
    })
    return [
      ...index.search(asked).map((found): SearchResult => {
        const { id, page, heading, excerpt } = found as unknown as Found
        const { queryTerms: terms } = found
        return {
          href: `/docs/${id}`,
          icon: heading ? <Hash /> : <FileText />,
          title: <Marked text={heading || page} terms={terms} />,
          ...(heading && { note: page }),
          detail: excerpt && (
            <span className="line-clamp-2 text-sm text-muted">
              <Marked text={around(excerpt, terms)} terms={terms} />
            </span>
          ),
        }
      }),
    ]
      .slice(0, called.length > 0 ? most - 4 : most)
      .concat(
        called.slice(0, 5).map(({ id, method, path, summary }) => ({
          href: `/docs/api#${id}`,
          icon: <FileText />,
          title: <Marked text={summary} terms={words} />,
          detail: (
            <span className="flex items-baseline gap-2 text-sm text-muted">
              <MethodName method={method} /> <code className="truncate font-mono">{path}</code>
            </span>
          ),
        })),
      )
  }, [asked, index, description])
  const said = error
    ? `The search could not be loaded: ${error.message}`
    : asked === ''
      ? 'Type a word: a task, a setting, an error code.'
      : index
        ? `Nothing has “${asked}”. Try fewer or other words.`
        : 'Loading…'
  return { results, said }
}

/** The part of a text that has the first of the words. */
function around(text: string, terms: string[]): string {
  const lower = text.toLowerCase()
  const found = terms.map((term) => lower.indexOf(term.toLowerCase())).filter((at) => at >= 0)
  const at = Math.min(...found, text.length)
  if (found.length === 0 || at < 90) return text
  return `…${text.slice(text.lastIndexOf(' ', at - 40) + 1)}`
}

function Marked({ text, terms }: { text: string; terms: string[] }) {
  const words = terms.filter((term) => term.length > 1).map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
  if (words.length === 0) return text
  return text.split(new RegExp(`(${words.join('|')})`, 'gi')).map((part, index) =>
    index % 2 === 1 ? (
      <mark key={index} className="rounded-sm bg-accent-soft text-accent-ink">
        {part}
      </mark>
    ) : (
      part
    ),
  )
}
