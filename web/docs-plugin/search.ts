// The index of the search, made at build: every section of every page is found by itself.
import MiniSearch from 'minisearch'
import { searchOptions } from '../lib/docs-search.ts'
import type { DocPage } from './site.ts'

const longestExcerpt = 480

export function searchIndex(pages: readonly DocPage[]): string {
  const index = new MiniSearch(searchOptions)
  for (const page of pages)
    page.sections.forEach((section, at) => {
      index.add({
        id: at === 0 ? page.slug : `${page.slug}#${section.id}`,
        title: at === 0 ? page.title : '',
        heading: at === 0 ? '' : section.heading,
        text: section.text,
        page: page.title,
        excerpt: section.text.slice(0, longestExcerpt),
      })
    })
  return JSON.stringify(index)
}
