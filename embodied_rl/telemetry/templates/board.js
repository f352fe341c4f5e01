(function(){
var table=document.getElementById('board'),body=table.tBodies[0],rows=[].slice.call(body.rows);
var scope=document.getElementById('scope'),name=document.getElementById('name'),said=document.getElementById('said');
function figure(v){return (100*v).toFixed(1)+'%'}
function show(){
  var shown=0;
  rows.forEach(function(row){
    var score=JSON.parse(row.dataset.scores)[scope.value],cell=row.querySelector('.success');
    row.hidden=!score||row.dataset.name.toLowerCase().indexOf(name.value.toLowerCase())<0;
    if(row.hidden)return;
    shown++;
    cell.dataset.value=score.rate;
    cell.querySelector('.rate').textContent=figure(score.rate)+' ('+score.successes+'/'+score.episodes+')';
    var lost=score.not_measured,all=lost+score.episodes;
    cell.querySelector('small').textContent=figure(score.low)+' to '+figure(score.high)
      +(lost?', not measured: '+lost+' of '+all:'');
    cell.querySelector('i').style.left=100*score.low+'%';
    cell.querySelector('i').style.width=100*(score.high-score.low)+'%';
    cell.querySelector('b').style.left='calc('+100*score.rate+'% - 1px)';
    var steps=row.querySelector('.steps');
    steps.dataset.value=score.mean_steps;steps.querySelector('span').textContent=score.mean_steps.toFixed(0);
  });
  said.textContent=shown+' of '+rows.length+' rows shown';
}
function sort(head,index){
  var down=head.getAttribute('aria-sort')!=='descending';
  [].forEach.call(table.tHead.rows[0].cells,function(other){other.removeAttribute('aria-sort')});
  head.setAttribute('aria-sort',down?'descending':'ascending');
  rows.sort(function(a,b){
    var x=a.cells[index].dataset.value,y=b.cells[index].dataset.value,n=parseFloat(x)-parseFloat(y);
    var order=isNaN(n)?x.localeCompare(y):n;
    return down?-order:order;
  }).forEach(function(row){body.appendChild(row)});
}
[].forEach.call(table.tHead.rows[0].cells,function(head,index){
  head.querySelector('button').addEventListener('click',function(){sort(head,index)});
});
scope.addEventListener('change',show);name.addEventListener('input',show);
document.getElementById('controls').hidden=false;show();
})();
