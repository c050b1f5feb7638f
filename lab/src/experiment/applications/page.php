<?php
// A page of an auction, as RUBiS' SearchItemsInCategory: a category and all its items.
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$kept = isset($_GET['kept']) ? 'p:' : '';
$database = new mysqli($kept . 'DATABASE', 'root', '', 'auction');
$category = (int) $_GET['category'];
$name = $database->query("SELECT name FROM categories WHERE id = $category")->fetch_row()[0];
$name = htmlspecialchars($name);
echo "<html><head><title>$name</title></head><body><h1>$name</h1><table>\n";
$items = $database->query("SELECT id, name, price, bids, description FROM items WHERE category = $category");
foreach ($items as $item) {
    $item = array_map('htmlspecialchars', $item);
    echo "<tr><td><a href=\"item?id={$item['id']}\">{$item['name']}</a></td><td>{$item['price']}</td>",
        "<td>{$item['bids']}</td><td>{$item['description']}</td></tr>\n";
}
echo "</table></body></html>\n";
